//! What `up`, `server` and `agent` share: the data folder, the embedded database, the HTTP listener, signals and logging.

pub mod banner;
mod data_dir;
mod embedded;
mod http;
mod process;

pub use data_dir::{DataDir, default_agent_dir};
pub use embedded::Embedded;
pub use http::Http;
pub use process::{
    default_slots, host_name, init_logging, machine_timezone, own_zygote, raise_open_files, stop_signal,
};
