//! Membership against a plain model of etcd.

mod etcd;
mod life;
mod random;
mod rig;
mod view;
