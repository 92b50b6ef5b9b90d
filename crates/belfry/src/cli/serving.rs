//! Flags of the three commands that serve: `up`, `server`, `agent`. Each flag may also come from the environment.

use std::net::SocketAddr;
use std::path::PathBuf;

use belfry_agent::RunLogsConfig;
use belfry_core::job::TimeoutAction;
use belfry_core::join::JoinToken;
use belfry_core::outward::Network;
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
    /// How long runs of jobs without a `timeout` may take, as 6h [default: for ever]
    #[arg(long, env = "BELFRY_DEFAULT_TIMEOUT", value_name = "DURATION", value_parser = default_timeout)]
    pub default_timeout: Option<Span>,
    /// What happens to them then: kill, or report and let them go on [default: kill]
    #[arg(long, env = "BELFRY_DEFAULT_TIMEOUT_ACTION", value_name = "ACTION")]
    pub default_timeout_action: Option<TimeoutWord>,
    /// Networks of this machine that webhooks may reach, as 127.0.0.0/8; without it neither loopback, link-local nor metadata addresses are called
    #[arg(long, env = "BELFRY_WEBHOOK_ALLOW", value_delimiter = ',', value_name = "NETWORK")]
    pub webhook_allow: Vec<Network>,
    /// What jobs may do on this machine, whatever the servers say [default: /etc/belfry/policy.toml if there is one]
    #[arg(long, env = "BELFRY_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// User for jobs that name none, when this process runs as root [default: nobody]
    #[arg(long, env = "BELFRY_DEFAULT_USER", value_name = "USER")]
    pub default_user: Option<String>,
    /// How long running work may finish after SIGTERM, before it is ended
    #[arg(long, env = "BELFRY_QUIT_TIME", default_value = "30s", value_name = "DURATION", value_parser = Span::parse)]
    pub quit_time: Span,
    #[command(flatten)]
    pub run_logs: RunLogsArgs,
    /// How much of results and output may wait on disk while no server stores it: beyond three quarters output is left out (marked), beyond
    /// all of it no new work is taken; results of runs are always kept
    #[arg(long, env = "BELFRY_SPOOL_MAX", default_value = "1GiB", value_name = "SIZE", value_parser = spool_max)]
    pub spool_max: Size,
    /// With less free disk in the data folder no new work is taken; 0 switches that off [default: 256MiB, or a twentieth of a smaller disk]
    #[arg(long, env = "BELFRY_DISK_FLOOR", value_name = "SIZE", value_parser = disk_floor)]
    pub disk_floor: Option<Size>,
    /// Serve the local API of this node here, as 127.0.0.1:8001; only loopback addresses are accepted [default: not served]
    #[arg(long, env = "BELFRY_LOCAL_API", value_name = "ADDRESS", value_parser = crate::serve::loopback)]
    pub local_api: Option<SocketAddr>,
}

/// Files with what runs print, on the machine where they run.
#[derive(Clone, Debug, Args)]
pub struct RunLogsArgs {
    /// Write what each run prints into a file here too, as DIR/2026-11-17/NAMESPACE.JOB.RUN.ATTEMPT.log (days in UTC)
    #[arg(long = "run-logs", env = "BELFRY_RUN_LOGS", value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Remove folders of days that are longer ago
    #[arg(long = "run-logs-keep", env = "BELFRY_RUN_LOGS_KEEP", default_value = "14d", value_name = "DURATION", value_parser = run_logs_keep)]
    pub keep: Span,
    /// How much of a run's output its file may have; what is beyond it is left out, and the file says so
    #[arg(long = "run-logs-max", env = "BELFRY_RUN_LOGS_MAX", default_value = "16MiB", value_name = "SIZE", value_parser = Size::parse)]
    pub file_max: Size,
}

impl RunLogsArgs {
    pub fn config(&self) -> Option<RunLogsConfig> {
        let folder = self.folder.clone()?;
        Some(RunLogsConfig { folder, keep: Some(self.keep.get()), file_max: self.file_max })
    }
}

/// Less would remove what is being written.
const RUN_LOGS_KEEP_MIN: Span = Span::from_secs(86_400);

fn run_logs_keep(text: &str) -> Result<Span, String> {
    match Span::parse(text)? {
        keep if keep < RUN_LOGS_KEEP_MIN => {
            Err(format!("`{text}` is too little; {RUN_LOGS_KEEP_MIN} or more is accepted"))
        }
        keep => Ok(keep),
    }
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
    /// A node whose clock is further off gets no work, and a server whose clock is further off most others' fires nothing [default: 2s]
    #[arg(long, env = "BELFRY_MAX_CLOCK_SKEW", value_name = "DURATION", value_parser = Span::parse)]
    pub max_clock_skew: Option<Span>,
    /// Leave the compaction of old revisions in etcd to its operators
    #[arg(long, env = "BELFRY_NO_COMPACTION", value_parser = clap::builder::BoolishValueParser::new())]
    pub no_compaction: bool,
    /// How long runs of jobs without a `timeout` may take, as 6h [default: for ever]
    #[arg(long, env = "BELFRY_DEFAULT_TIMEOUT", value_name = "DURATION", value_parser = default_timeout)]
    pub default_timeout: Option<Span>,
    /// What happens to them then: kill, or report and let them go on [default: kill]
    #[arg(long, env = "BELFRY_DEFAULT_TIMEOUT_ACTION", value_name = "ACTION")]
    pub default_timeout_action: Option<TimeoutWord>,
    /// Networks of this machine that webhooks may reach, as 127.0.0.0/8; without it neither loopback, link-local nor metadata addresses are called
    #[arg(long, env = "BELFRY_WEBHOOK_ALLOW", value_delimiter = ',', value_name = "NETWORK")]
    pub webhook_allow: Vec<Network>,
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
    /// What jobs may do on this machine, whatever the servers say [default: /etc/belfry/policy.toml if there is one]
    #[arg(long, env = "BELFRY_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// User for jobs that name none, when this process runs as root [default: nobody]
    #[arg(long, env = "BELFRY_DEFAULT_USER", value_name = "USER")]
    pub default_user: Option<String>,
    /// How long running work may finish after SIGTERM, before it is ended
    #[arg(long, env = "BELFRY_QUIT_TIME", default_value = "1h", value_name = "DURATION", value_parser = Span::parse)]
    pub quit_time: Span,
    #[command(flatten)]
    pub run_logs: RunLogsArgs,
    /// How much of results and output may wait on disk while no server stores it: beyond three quarters output is left out (marked), beyond
    /// all of it no new work is taken; results of runs are always kept
    #[arg(long, env = "BELFRY_SPOOL_MAX", default_value = "1GiB", value_name = "SIZE", value_parser = spool_max)]
    pub spool_max: Size,
    /// With less free disk in the data folder no new work is taken; 0B switches that off [default: 256MiB, or a twentieth of a smaller disk]
    #[arg(long, env = "BELFRY_DISK_FLOOR", value_name = "SIZE", value_parser = disk_floor)]
    pub disk_floor: Option<Size>,
    /// Serve the local API of this node here, as 127.0.0.1:8001; only loopback addresses are accepted [default: not served]
    #[arg(long, env = "BELFRY_LOCAL_API", value_name = "ADDRESS", value_parser = crate::serve::loopback)]
    pub local_api: Option<SocketAddr>,
}

/// What happens to a run that takes too long, where the cluster says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeoutWord {
    Kill,
    Report,
}

impl From<TimeoutWord> for TimeoutAction {
    fn from(word: TimeoutWord) -> Self {
        match word {
            TimeoutWord::Kill => TimeoutAction::Kill,
            TimeoutWord::Report => TimeoutAction::Report,
        }
    }
}

fn default_timeout(text: &str) -> Result<Span, String> {
    match Span::parse(text)? {
        after if after.is_zero() => Err("`0s` would end every run at once; leave it out for no limit".to_owned()),
        after => Ok(after),
    }
}

/// Less would be full before a handful of runs has ended.
const SPOOL_MIN: Size = Size::from_bytes(1 << 20);

fn spool_max(text: &str) -> Result<Size, String> {
    match Size::parse(text)? {
        size if size < SPOOL_MIN => Err(format!("`{text}` is too little; {SPOOL_MIN} or more is accepted")),
        size => Ok(size),
    }
}

fn disk_floor(text: &str) -> Result<Size, String> {
    if text.trim() == "0" { Ok(Size::from_bytes(0)) } else { Size::parse(text) }
}
