//! What `up`, `server` and `agent` share: the data folder, the embedded database, the HTTP listener, signals and logging.

mod backends;
pub mod banner;
mod ca;
mod config_file;
mod data_dir;
mod http;
mod local_api;
mod post;
mod process;

pub use backends::{Backends, connect_coordinator};
pub use ca::Ca;
pub use config_file::complete;
pub use data_dir::{DataDir, default_agent_dir};
pub use http::Http;
pub use local_api::{LocalApi, loopback};
pub use post::WebhookPost;
pub use process::{
    default_policy, default_slots, host_name, init_logging, machine_timezone, own_zygote, raise_open_files,
    stop_signal, use_small_pages,
};
