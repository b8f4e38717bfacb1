//! Membership against a plain model of etcd.

mod doubts;
mod etcd;
mod life;
mod random;
mod refresh;
mod rig;
mod view;
