//! The control thread's side of a node: what operators see and ask. It never touches a structure of a
//! core; it asks through [`http::NodePort`] and merges what comes back.

mod barriers;
mod cluster;
pub mod connections;
mod durations;
pub mod epoch_file;
pub mod etcd;
mod figures;
mod guard;
pub mod health;
pub mod http;
mod kept_file;
pub mod log;
pub mod membership;
pub mod metadata;
mod metrics;
pub mod owners;
pub mod policy;
pub mod port;
pub mod report;
pub mod routes;
pub mod run;
pub mod signals;
pub mod sources;
pub mod turns;
mod ui;
pub mod visibility;
pub mod zones;

#[cfg(test)]
mod tests;
