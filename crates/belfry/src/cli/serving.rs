//! Flags of the three commands that serve: `up`, `server`, `agent`. Each flag may also come from the environment.

use std::net::SocketAddr;
use std::path::PathBuf;

use belfry_core::join::JoinToken;
use belfry_core::units::{Size, Span};
use clap::Args;

use super::KeyValue;

#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Folder for database, spool and credentials [default: /var/lib/belfry as root, else ~/.local/share/belfry]
    #[arg(long, env = "BELFRY_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub http: HttpArgs,
    /// Let jobs run as root when this process does
    #[arg(long, env = "BELFRY_ALLOW_ROOT", value_parser = clap::builder::BoolishValueParser::new())]
    pub allow_root: bool,
    /// How many runs may go at once [default: by the machine's cores]
    #[arg(long, env = "BELFRY_SLOTS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Name of this node [default: the host's name]
    #[arg(long, env = "BELFRY_NAME")]
    pub name: Option<String>,
    /// Zone for jobs that name none, as Europe/Berlin [default: this machine's zone]
    #[arg(long, env = "BELFRY_DEFAULT_TIMEZONE", value_name = "ZONE")]
    pub default_timezone: Option<String>,
    /// User for jobs that name none, when this process runs as root [default: nobody]
    #[arg(long, env = "BELFRY_DEFAULT_USER", value_name = "USER")]
    pub default_user: Option<String>,
    /// How long running work may finish after SIGTERM, before it is ended
    #[arg(long, env = "BELFRY_QUIT_TIME", default_value = "30s", value_name = "DURATION", value_parser = Span::parse)]
    pub quit_time: Span,
    /// How much of results and output may wait on disk while no server stores it: beyond three quarters output is left out (marked), beyond
    /// all of it no new work is taken; results of runs are always kept
    #[arg(long, env = "BELFRY_SPOOL_MAX", default_value = "1GiB", value_name = "SIZE", value_parser = spool_max)]
    pub spool_max: Size,
}

/// How API and console are served. An address that other machines can reach gets TLS, with a certificate of the cluster's CA unless
/// another is given.
#[derive(Clone, Debug, Default, Args)]
pub struct HttpArgs {
    /// Address and port for API and console [default: 127.0.0.1:8787]
    #[arg(long, env = "BELFRY_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Certificate chain (PEM) for API and console, instead of one that the cluster's own CA signs
    #[arg(long, env = "BELFRY_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Key of --tls-cert (PEM)
    #[arg(long, env = "BELFRY_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Serve without TLS on an address that other machines can reach
    #[arg(long, env = "BELFRY_ALLOW_PLAIN_HTTP", value_parser = clap::builder::BoolishValueParser::new())]
    pub allow_plain_http: bool,
}

/// What is absent here may stand in the configuration file; what is in neither has its default.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Configuration file; its keys are the long names of these flags, with `_` for `-`
    #[arg(long, env = "BELFRY_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Folder for what this server keeps on disk
    #[arg(long, env = "BELFRY_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    #[command(flatten)]
    pub http: HttpArgs,
    /// Address of the API by which the other servers reach this one, if not by --listen
    #[arg(long, env = "BELFRY_ADVERTISE", value_name = "URL")]
    pub advertise: Option<String>,
    /// Address and port for agents [default: 127.0.0.1:8788]
    #[arg(long, env = "BELFRY_LISTEN_AGENTS", value_name = "ADDRESS")]
    pub listen_agents: Option<SocketAddr>,
    /// Where agents reach this server, if not by --listen-agents; `none`: agents are not told of it
    #[arg(long, env = "BELFRY_ADVERTISE_AGENTS", value_name = "HOST:PORT")]
    pub advertise_agents: Option<String>,
    /// Database for jobs, runs and users, shared by all servers: postgres://…, mysql://… or sqlite:PATH [default: files in --data]
    #[arg(long, env = "BELFRY_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// Where ownership and claims are kept: etcd://…, zookeeper://…, or a database as for --store [default: the store's database]
    #[arg(long, env = "BELFRY_COORDINATOR", hide_env_values = true, value_name = "URL")]
    pub coordinator: Option<String>,
    /// Zone for jobs that name none, as Europe/Berlin
    #[arg(long, env = "BELFRY_DEFAULT_TIMEZONE", value_name = "ZONE")]
    pub default_timezone: Option<String>,
    /// How long a node may be silent before its runs are rescued [default: 10s]
    #[arg(long, env = "BELFRY_TTL", value_name = "DURATION", value_parser = Span::parse)]
    pub ttl: Option<Span>,
    /// Leave the compaction of old revisions in etcd to its operators
    #[arg(long, env = "BELFRY_NO_COMPACTION", value_parser = clap::builder::BoolishValueParser::new())]
    pub no_compaction: bool,
}

#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Join the cluster with this token from `belfry node join-token`; may stay on the command line afterwards
    #[arg(long, env = "BELFRY_JOIN", hide_env_values = true, value_name = "TOKEN")]
    pub join: Option<JoinToken>,
    /// A server's address for agents, if not the ones that the token named or that were learned since; may be given several times
    #[arg(long = "server", env = "BELFRY_SERVER", value_delimiter = ',', value_name = "HOST:PORT")]
    pub servers: Vec<String>,
    /// Folder for the spool and this node's credential [default: /var/lib/belfry-agent as root, else ~/.local/share/belfry-agent]
    #[arg(long, env = "BELFRY_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Name of this node [default: the host's name]
    #[arg(long, env = "BELFRY_NAME")]
    pub name: Option<String>,
    /// Label of this node; may be given several times
    #[arg(long = "label", env = "BELFRY_LABELS", value_delimiter = ',', value_name = "KEY=VALUE")]
    pub labels: Vec<KeyValue>,
    /// How many runs may go at once [default: by the machine's cores]
    #[arg(long, env = "BELFRY_SLOTS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Let jobs run as root when this process does
    #[arg(long, env = "BELFRY_ALLOW_ROOT", value_parser = clap::builder::BoolishValueParser::new())]
    pub allow_root: bool,
    /// User for jobs that name none, when this process runs as root [default: nobody]
    #[arg(long, env = "BELFRY_DEFAULT_USER", value_name = "USER")]
    pub default_user: Option<String>,
    /// How long running work may finish after SIGTERM, before it is ended
    #[arg(long, env = "BELFRY_QUIT_TIME", default_value = "1h", value_name = "DURATION", value_parser = Span::parse)]
    pub quit_time: Span,
    /// How much of results and output may wait on disk while no server stores it: beyond three quarters output is left out (marked), beyond
    /// all of it no new work is taken; results of runs are always kept
    #[arg(long, env = "BELFRY_SPOOL_MAX", default_value = "1GiB", value_name = "SIZE", value_parser = spool_max)]
    pub spool_max: Size,
}

/// Less would be full before a handful of runs has ended.
const SPOOL_MIN: Size = Size::from_bytes(1 << 20);

fn spool_max(text: &str) -> Result<Size, String> {
    match Size::parse(text)? {
        size if size < SPOOL_MIN => Err(format!("`{text}` is too little; {SPOOL_MIN} or more is accepted")),
        size => Ok(size),
    }
}
