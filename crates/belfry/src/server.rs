//! `belfry server`: API and scheduling without an agent; agents connect to it. Several servers on one store and coordinator are one
//! cluster.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use belfry_api::{ApiSettings, Joining};
use belfry_control::{Addresses, ControlConfig, Snapshot, Tasks};
use belfry_coord::{Clock, SystemClock};
use belfry_core::join::is_address;
use belfry_core::units::Span;
use tokio::net::TcpListener;

use crate::cli::ServerArgs;
use crate::client::default_data_dir;
use crate::serve::{self, Backends, Ca, DataDir, Http, WebhookPost};
use crate::up;

const TTL_MIN: Span = Span::from_secs(2);
/// A clock is measured over a network that may take a while.
const MAX_CLOCK_SKEW_MIN: Span = Span::from_millis(100);
const SNAPSHOT_FILE: &str = "snapshot.jsonl";

pub fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    serve::init_logging();
    serve::raise_open_files();
    serve::use_small_pages();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: ServerArgs) -> anyhow::Result<()> {
    let args = serve::complete(args)?;
    check(&args)?;
    let folder = args
        .data
        .clone()
        .or_else(default_data_dir)
        .context("no home folder is known; choose a data folder with --data")?;
    let data = DataDir::open(folder)?;
    let http = Http::bind(&args.http).await?;
    let timezone = up::timezone(args.default_timezone.as_deref())?;
    let snapshot_path = args.store.as_ref().map(|_| data.file(SNAPSHOT_FILE));
    let snapshot = match &snapshot_path {
        Some(path) => Snapshot::read(path).with_context(|| format!("{} cannot be read", path.display()))?,
        None => None,
    };
    let backends =
        Backends::open(&data, args.store.as_deref(), args.coordinator.as_deref(), snapshot.is_some()).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let snapshot = snapshot.filter(|_| backends.store_is_away);
    let ca = match &snapshot {
        Some(snapshot) => Ca::of_snapshot(snapshot)?,
        None => {
            up::first_admin(&data, &backends.store, &*clock).await?;
            up::cli_token(&data, &backends.store, &*clock).await?;
            Ca::of_cluster(&backends.store, clock.now()).await?
        }
    };
    let for_agents = TcpListener::bind(args.listen_agents.unwrap_or(([127, 0, 0, 1], 8788).into()))
        .await
        .context("the address for agents cannot be listened on; choose another with --listen-agents")?;
    let agents = for_agents.local_addr()?;
    let (url, local_url) = (args.advertise.clone().unwrap_or_else(|| http.url()), http.local_url());
    let config = ControlConfig {
        ttl: args.ttl.map_or(ControlConfig::default().ttl, Span::get),
        max_clock_skew: args.max_clock_skew.map_or(ControlConfig::default().max_clock_skew, Span::get),
        tidy: !args.no_compaction,
        addresses: Addresses { api: url.clone(), agents: reached_by_agents(&args, agents)? },
        snapshot: snapshot_path,
        default_timeout: up::default_timeout(args.default_timeout, args.default_timeout_action)?,
        post: Some(Arc::new(WebhookPost::new(&args.webhook_allow)?)),
        ..ControlConfig::default()
    };
    let control = up::start_control(config, &backends, clock.clone()).await?;
    control.serve_agents(for_agents, ca.issue(&[])?);
    let tasks = Tasks::default();
    let settings = ApiSettings {
        default_timezone: timezone,
        secure_cookie: http.has_tls(),
        joining: Some(Joining { ca: ca.hash, address: agents.to_string() }),
        peers_ca: Some(ca.certificate.clone()),
        callers: snapshot.map(|snapshot| snapshot.callers).unwrap_or_default(),
        ..ApiSettings::default()
    };
    let router = up::api(&backends.store, &control, settings, clock, &tasks)?;
    let names: Vec<String> = host_of(&url).into_iter().collect();
    let stop_http = http.serve(&tasks, router, &ca, &names)?;
    // Whoever waits for `address` finds everything else in place.
    data.write_secret("agents-address", &agents.to_string())?;
    data.write_secret("ca.pem", ca.certificate.trim_end())?;
    data.write_secret("address", &local_url)?;
    tracing::info!("ready at {url}, for agents at {agents}; `belfry node join-token` prints how a machine joins");
    let signal = serve::stop_signal(&tasks).await?;
    tracing::info!("{signal}: shards are given back; what runs on agents goes on");
    control.stop().await;
    data.remove("address");
    data.remove("agents-address");
    let _ = stop_http.send(());
    tracing::info!("stopped");
    Ok(())
}

fn check(args: &ServerArgs) -> anyhow::Result<()> {
    if let Some(url) = &args.advertise
        && (!url.starts_with("http://") && !url.starts_with("https://") || host_of(url).is_none())
    {
        bail!("--advertise: `{url}` is not accepted; an address as https://belfry1.example:8787 is");
    }
    if let Some(ttl) = args.ttl.filter(|ttl| *ttl < TTL_MIN) {
        bail!("--ttl: `{ttl}` is too short; {TTL_MIN} or more is accepted");
    }
    if let Some(skew) = args.max_clock_skew.filter(|skew| *skew < MAX_CLOCK_SKEW_MIN) {
        bail!(
            "--max-clock-skew: `{skew}` is too little to be told from a slow network; {MAX_CLOCK_SKEW_MIN} or more is accepted"
        );
    }
    Ok(())
}

fn host_of(url: &str) -> Option<String> {
    let host = reqwest::Url::parse(url).ok()?.host_str()?.to_owned();
    Some(host.trim_matches(['[', ']']).to_owned())
}

/// What agents are told. An address that means "all of this machine's" is told as the machine's name.
fn reached_by_agents(args: &ServerArgs, listening: SocketAddr) -> anyhow::Result<String> {
    match args.advertise_agents.as_deref() {
        Some("none") => Ok(String::new()),
        Some(address) if is_address(address) => Ok(address.to_owned()),
        Some(other) => bail!("--advertise-agents: `{other}` is not accepted; HOST:PORT or `none` is"),
        None if listening.ip().is_unspecified() => Ok(format!("{}:{}", serve::host_name(), listening.port())),
        None => Ok(listening.to_string()),
    }
}
