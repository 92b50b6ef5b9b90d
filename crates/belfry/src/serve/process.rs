//! Facts about this process and its machine, and the signals that end it.

use std::path::PathBuf;

use belfry_exec::ZygoteCommand;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

const SLOTS_PER_CORE: usize = 64;

/// To stderr; `BELFRY_LOG` takes the usual filter syntax.
pub fn init_logging() {
    let filter = EnvFilter::try_from_env("BELFRY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(ansi)
        // A line that cannot be written is lost. To say so there too would panic where a future has work to do.
        .log_internal_errors(false)
        .init();
}

/// The zygote is this very program in its hidden mode, also when the file on disk was replaced by an upgrade.
pub fn own_zygote() -> ZygoteCommand {
    ZygoteCommand { program: PathBuf::from("/proc/self/exe"), args: vec!["__zygote".to_owned()] }
}

/// The place where an administrator's word is looked for when no other is named.
pub fn default_policy() -> Option<PathBuf> {
    let path = PathBuf::from("/etc/belfry/policy.toml");
    path.exists().then_some(path)
}

pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}

pub fn default_slots() -> u32 {
    (std::thread::available_parallelism().map_or(1, usize::from) * SLOTS_PER_CORE) as u32
}

/// Each run holds two pipes; the soft limit of 1,024 is soon reached.
pub fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(cause) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!("the limit of open files stays at {soft}: {cause}");
    }
}

/// Many small things are held for long: in huge pages 100,000 jobs take 160 MB, in small ones 120 MB. The zygote undoes it for
/// what it starts.
pub fn use_small_pages() {
    if let Err(cause) = nix::sys::prctl::set_thp_disable(true) {
        tracing::debug!(%cause, "huge pages stay in use");
    }
}

/// The zone of this machine as the bundled database knows it, else UTC.
pub fn machine_timezone() -> String {
    let from_env = std::env::var("TZ").ok().map(|zone| zone.trim_start_matches(':').to_owned());
    let from_link = std::fs::read_link("/etc/localtime").ok().and_then(|target| {
        let target = target.to_string_lossy().into_owned();
        target.split_once("zoneinfo/").map(|(_, zone)| zone.to_owned())
    });
    let from_file = std::fs::read_to_string("/etc/timezone").ok().map(|zone| zone.trim().to_owned());
    let known = |zone: &String| belfry_core::schedule::time_zone(zone).is_ok();
    [from_env, from_link, from_file].into_iter().flatten().find(known).unwrap_or_else(|| "UTC".to_owned())
}

/// Resolves at the first SIGTERM or SIGINT; a second one ends the process at once.
pub async fn stop_signal(tasks: &belfry_control::Tasks) -> std::io::Result<&'static str> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let name = tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    };
    tasks.spawn("second signal", async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::warn!("a second signal: the process ends at once; running work is ended with it");
        std::process::exit(130);
    });
    Ok(name)
}

/// ` (process 4711 has it)`, where that can be found out.
pub(super) fn owner_of_port(address: std::net::SocketAddr) -> Option<String> {
    let wanted = format!(":{:04X}", address.port());
    let table = std::fs::read_to_string(if address.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" }).ok()?;
    let inode = table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next()?;
        let listening = words.nth(1)? == "0A";
        (local.ends_with(&wanted) && listening).then(|| line.split_whitespace().nth(9).map(str::to_owned))?
    })?;
    let socket = format!("socket:[{inode}]");
    let holds = |pid: &str| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        fds.flatten()
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == socket.as_str()))
            .then_some(())
    };
    let pid = std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        pid.parse::<u32>().ok()?;
        holds(&pid).map(|()| pid)
    })?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!(" (process {pid}, {}, has it)", name.trim()))
}
