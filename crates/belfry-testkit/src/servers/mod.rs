//! Real servers for tests: etcd, ZooKeeper, PostgreSQL and MariaDB as their Debian packages install them, each on free ports
//! and in a temporary folder. A server that cannot be started fails the test: a backend that was not tried is not tested.

mod etcd;
mod mariadb;
mod ports;
mod postgres;
mod process;
mod zookeeper;

pub use etcd::{Etcd, EtcdOptions};
pub use mariadb::MariaDb;
pub use postgres::Postgres;
pub use zookeeper::ZooKeeper;

pub use ports::Port;
pub(crate) use process::{die_with_parent, spawn_from_a_thread_that_stays};
