//! The server's configuration file: the same keys as the flags, with `_` for `-`. A flag or a variable beats the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use belfry_core::outward::Network;
use belfry_core::units::Span;
use serde::Deserialize;

use crate::cli::{ServerArgs, TimeoutWord};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ServerFile {
    data: Option<PathBuf>,
    listen: Option<SocketAddr>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    allow_plain_http: bool,
    advertise: Option<String>,
    listen_agents: Option<SocketAddr>,
    advertise_agents: Option<String>,
    store: Option<String>,
    coordinator: Option<String>,
    default_timezone: Option<String>,
    ttl: Option<Span>,
    max_clock_skew: Option<Span>,
    no_compaction: bool,
    default_timeout: Option<Span>,
    default_timeout_action: Option<TimeoutWord>,
    webhook_allow: Vec<Network>,
}

/// What the flags leave open comes from the file that they name.
pub fn complete(args: ServerArgs) -> anyhow::Result<ServerArgs> {
    let Some(path) = &args.config else { return Ok(args) };
    let file = read(path).with_context(|| format!("--config {}", path.display()))?;
    let mut args = args;
    args.data = args.data.or(file.data);
    args.http.listen = args.http.listen.or(file.listen);
    args.http.tls_cert = args.http.tls_cert.or(file.tls_cert);
    args.http.tls_key = args.http.tls_key.or(file.tls_key);
    args.http.allow_plain_http |= file.allow_plain_http;
    args.advertise = args.advertise.or(file.advertise);
    args.listen_agents = args.listen_agents.or(file.listen_agents);
    args.advertise_agents = args.advertise_agents.or(file.advertise_agents);
    args.store = args.store.or(file.store);
    args.coordinator = args.coordinator.or(file.coordinator);
    args.default_timezone = args.default_timezone.or(file.default_timezone);
    args.ttl = args.ttl.or(file.ttl);
    args.max_clock_skew = args.max_clock_skew.or(file.max_clock_skew);
    args.no_compaction |= file.no_compaction;
    args.default_timeout = args.default_timeout.or(file.default_timeout);
    args.default_timeout_action = args.default_timeout_action.or(file.default_timeout_action);
    if args.webhook_allow.is_empty() {
        args.webhook_allow = file.webhook_allow;
    }
    Ok(args)
}

fn read(path: &Path) -> anyhow::Result<ServerFile> {
    let text = std::fs::read_to_string(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Ok(toml::from_str(&text)?),
        Some("yaml" | "yml") if text.trim().is_empty() => Ok(ServerFile::default()),
        Some("yaml" | "yml") => Ok(yaml_serde::from_str(&text)?),
        _ => bail!("its name must end in .toml, .yaml or .yml"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn completed(name: &str, text: &str, flags: &[&str]) -> anyhow::Result<ServerArgs> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        let line = [&["belfry", "server", "--config", &path], flags].concat();
        let Command::Server(args) = Cli::try_parse_from(line).unwrap().command else { unreachable!() };
        complete(args)
    }

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let toml = "listen = \"127.0.0.1:1\"\nttl = \"4s\"\nmax_clock_skew = \"3s\"\nstore = \"sqlite:/x\"\nno_compaction = true\ndefault_timeout = \"6h\"\ndefault_timeout_action = \"report\"\nwebhook_allow = [\"::1\"]\n";
        let yaml = "listen: 127.0.0.1:1\nttl: 4s\nmax_clock_skew: 3s\nstore: sqlite:/x\nno_compaction: true\ndefault_timeout: 6h\ndefault_timeout_action: report\nwebhook_allow: [\"::1\"]\n";
        for (name, text) in [("a.toml", toml), ("a.yaml", yaml)] {
            let args = completed(name, text, &["--ttl", "5s"]).unwrap();
            assert_eq!(args.http.listen, Some("127.0.0.1:1".parse().unwrap()));
            assert_eq!(args.max_clock_skew, Some(Span::from_secs(3)));
            assert_eq!((args.ttl, args.store.as_deref()), (Some(Span::from_secs(5)), Some("sqlite:/x")));
            assert!(args.no_compaction && args.coordinator.is_none());
            assert_eq!(args.webhook_allow, ["::1".parse().unwrap()]);
            let default = (args.default_timeout, args.default_timeout_action);
            assert_eq!(default, (Some(Span::from_secs(6 * 3600)), Some(TimeoutWord::Report)));
            let args = completed(name, text, &["--webhook-allow", "127.0.0.0/8,10.0.0.1"]).unwrap();
            assert_eq!(args.webhook_allow.len(), 2);
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let refusal = format!("{:#}", completed("a.toml", "lissten = 1", &[]).unwrap_err());
        assert!(refusal.contains("lissten") && refusal.contains("a.toml"), "{refusal}");
        let refusal = format!("{:#}", completed("a.conf", "", &[]).unwrap_err());
        assert!(refusal.contains(".toml, .yaml or .yml"), "{refusal}");
    }
}
