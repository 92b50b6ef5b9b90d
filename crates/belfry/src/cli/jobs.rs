//! Verbs and flags of `belfry job`.

use std::path::PathBuf;

use belfry_core::units::Span;
use clap::{ArgGroup, Args, Subcommand};

use super::{Format, JobName, KeyValue, When, moment};

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Save a new job in one line
    Add(Box<JobAdd>),
    /// List jobs
    Ls(JobLs),
    /// Show a job's document, ready for `job apply`
    Get {
        name: JobName,
        #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
        output: Format,
    },
    /// Make jobs what files say: shows what will change, then changes all or nothing
    Apply(JobApply),
    /// Show what `job apply` would change; exit code 1 when there is a difference
    Diff(JobDiff),
    /// Print documents of jobs, ready for `job apply`
    Export(JobExport),
    /// Remove jobs; their history stays until it is pruned
    Rm {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<JobName>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Run a job now
    Run(JobRun),
    /// Stop firing; runs that are going on are left alone
    Pause {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<JobName>,
    },
    /// Fire again from now on
    Resume {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<JobName>,
    },
    /// End every run of a job, wherever it is
    Kill {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<JobName>,
    },
    /// List a job's runs, the newest first, or its revisions
    History(JobHistory),
}

#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("fires").multiple(false).args(["cron", "every", "at", "service"]),
    after_help = "\
The command is given to bash, with several words quoted as your shell had them; with --exec it is run as it stands, without a shell.
Without --cron, --every, --at or --service the job is only run by hand.

Examples:
  belfry job add backup --cron '0 4 * * *' --tz Europe/Berlin -- 'pg_dump shop | gzip > /srv/shop.gz'
  belfry job add ping --every 90s --timeout 10s -- curl -fsS http://10.0.0.7/
  belfry job add gateway --service -- /srv/gateway --port 8080"
)]
pub struct JobAdd {
    pub name: JobName,
    /// Cron expression of 5, 6 or 7 fields, or an @ form; may be given several times
    #[arg(long, value_name = "EXPR")]
    pub cron: Vec<String>,
    /// Interval, as 90s or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    pub every: Option<Span>,
    /// One moment, as 2027-01-01T04:00:00+08:00, 2027-01-01T04:00 (in --tz) or +10m
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub at: Option<When>,
    /// It always runs, on one node, and is started again when it ends
    #[arg(long)]
    pub service: bool,
    /// Zone of the schedule, as Asia/Shanghai [default: the server's default zone]
    #[arg(long, value_name = "ZONE")]
    pub tz: Option<String>,
    /// End a run that takes longer, as 30m
    #[arg(long, value_name = "DURATION", value_parser = Span::parse)]
    pub timeout: Option<Span>,
    /// What becomes of a fire while a run is still going [default: forbid]
    #[arg(long, value_parser = ["forbid", "queue", "allow", "replace"])]
    pub overlap: Option<String>,
    /// Where it runs: on one node of the cluster, on each that fits by its own clock, or on one that goes on when it is cut off
    /// [default: one]
    #[arg(long, value_parser = ["one", "each", "home"])]
    pub run_on: Option<String>,
    /// Only on this host; may be given several times
    #[arg(long = "on", value_name = "HOST")]
    pub hosts: Vec<String>,
    /// Namespace of the job [default: default]
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Label; may be given several times
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<KeyValue>,
    /// Directory to run in
    #[arg(long, value_name = "DIR")]
    pub dir: Option<String>,
    /// User to run as
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Environment variable; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub env: Vec<KeyValue>,
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Save it, but do not let it fire yet
    #[arg(long)]
    pub disabled: bool,
    /// Run the words as they stand, without a shell
    #[arg(long)]
    pub exec: bool,
    /// Command to run, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct JobLs {
    /// Only jobs with this text in name, description or command
    #[arg(short, long = "query", value_name = "TEXT")]
    pub query: Option<String>,
    /// Only jobs with this label; may be given several times
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<KeyValue>,
    /// Only jobs in this state
    #[arg(long, value_parser = ["enabled", "paused"])]
    pub state: Option<String>,
    /// Only jobs of this namespace
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Files end in .yaml, .yml, .toml or .json; folders are read with all their folders; `-` reads YAML or JSON from standard input.
YAML may hold several documents, JSON a list, TOML several [[job]] tables.")]
pub struct JobApply {
    #[arg(required = true, value_name = "FILE|DIR")]
    pub files: Vec<PathBuf>,
    /// Only show what would change
    #[arg(long)]
    pub dry_run: bool,
    /// Also remove jobs that are in none of the files, in the namespaces that the files name
    #[arg(long)]
    pub prune: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct JobDiff {
    #[arg(required = true, value_name = "FILE|DIR")]
    pub files: Vec<PathBuf>,
    /// Also show jobs that are in none of the files
    #[arg(long)]
    pub prune: bool,
}

#[derive(Debug, Args)]
pub struct JobExport {
    /// Which jobs [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<JobName>,
    /// Only jobs of this namespace
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "names")]
    pub namespace: Option<String>,
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    pub output: Format,
}

#[derive(Debug, Args)]
pub struct JobRun {
    pub name: JobName,
    /// Environment variable for this run; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub env: Vec<KeyValue>,
    /// Node to run on
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Run it even when its overlap rule says no
    #[arg(long)]
    pub force: bool,
    /// A repeated request with the same key is the same run
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Follow its output until it ends; exit code 1 when it does not succeed
    #[arg(short, long)]
    pub follow: bool,
}

#[derive(Debug, Args)]
pub struct JobHistory {
    pub name: JobName,
    /// Who changed the job, and when, instead of its runs
    #[arg(long)]
    pub revisions: bool,
    /// At most so many, the newest
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}
