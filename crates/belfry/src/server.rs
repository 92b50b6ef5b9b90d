//! `belfry server`: API and scheduling without an agent; agents connect to it. Several servers on one store and coordinator are one
//! cluster. In this version on loopback addresses only: what TLS between machines needs is refused by name.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use belfry_control::{Addresses, ControlConfig, Tasks};
use belfry_coord::{Clock, SystemClock};
use belfry_core::units::Span;
use belfry_store::Store;
use tokio::net::TcpListener;

use crate::cli::ServerArgs;
use crate::client::default_data_dir;
use crate::serve::{self, Backends, DataDir, Http};
use crate::up;

const TTL_MIN: Span = Span::from_secs(2);
const CREDENTIAL_FILE: &str = "agent-credential";
const CREDENTIAL_SETTING: &str = "agent_credential";

pub fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    serve::init_logging();
    serve::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: ServerArgs) -> anyhow::Result<()> {
    refuse_what_is_to_come(&args)?;
    let folder = args
        .data
        .clone()
        .or_else(default_data_dir)
        .context("no home folder is known; choose a data folder with --data")?;
    let data = DataDir::open(folder)?;
    let http = Http::bind(args.listen.unwrap_or(([127, 0, 0, 1], 8787).into()), false).await?;
    let timezone = up::timezone(args.default_timezone.as_deref())?;
    let backends = Backends::open(&data, args.store.as_deref(), args.coordinator.as_deref()).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    up::first_admin(&data, &backends.store, &*clock).await?;
    up::cli_token(&data, &backends.store, &*clock).await?;
    let credential = agent_credential(&data, &backends.store, &*clock).await?;
    let for_agents = TcpListener::bind(args.listen_agents.unwrap_or(([127, 0, 0, 1], 8788).into()))
        .await
        .context("the address for agents cannot be listened on; choose another with --listen-agents")?;
    let (address, agents) = (http.address, for_agents.local_addr()?);
    let config = ControlConfig {
        ttl: args.ttl.map_or(ControlConfig::default().ttl, Span::get),
        agent_credential: Some(credential),
        tidy: !args.no_compaction,
        addresses: Addresses { api: format!("http://{address}"), agents: format!("http://{agents}") },
        ..ControlConfig::default()
    };
    let control = up::start_control(config, &backends, clock.clone()).await?;
    control.serve_agents(for_agents);
    let tasks = Tasks::default();
    let stop_http = http.serve(&tasks, up::api(&backends.store, &control, &timezone, clock, &tasks)?);
    // Whoever waits for `address` finds everything else in place.
    data.write_secret("agents-address", &format!("http://{agents}"))?;
    data.write_secret("address", &format!("http://{address}"))?;
    tracing::info!(
        "ready at http://{address}; agents: belfry agent --server http://{agents} --credential-file {}",
        data.file(CREDENTIAL_FILE).display()
    );
    let signal = serve::stop_signal(&tasks).await?;
    tracing::info!("{signal}: shards are given back; what runs on agents goes on");
    control.stop().await;
    data.remove("address");
    data.remove("agents-address");
    let _ = stop_http.send(());
    tracing::info!("stopped");
    Ok(())
}

fn refuse_what_is_to_come(args: &ServerArgs) -> anyhow::Result<()> {
    if args.config.is_some() {
        bail!("--config is not supported yet; use flags or BELFRY_* variables");
    }
    if args.allow_plain_http {
        bail!("--allow-plain-http is not supported yet; listen on 127.0.0.1 and use `ssh -L`");
    }
    let addresses = [("--listen", args.listen), ("--listen-agents", args.listen_agents)];
    if let Some((flag, _)) = addresses.iter().find(|(_, address)| address.is_some_and(|a| !a.ip().is_loopback())) {
        bail!("{flag}: TLS between machines is not supported yet, so only loopback addresses are accepted");
    }
    match args.ttl {
        Some(ttl) if ttl < TTL_MIN => bail!("--ttl: `{ttl}` is too short; {TTL_MIN} or more is accepted"),
        _ => Ok(()),
    }
}

/// Shared by all agents and servers of the cluster until each node gets its own.
async fn agent_credential(data: &DataDir, store: &Store, clock: &dyn Clock) -> anyhow::Result<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|cause| anyhow::anyhow!("no random numbers: {cause}"))?;
    let fresh: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let known = data.read_secret(CREDENTIAL_FILE).unwrap_or(fresh);
    let credential = store.setting_or(CREDENTIAL_SETTING, &known, clock.now()).await?;
    data.write_secret(CREDENTIAL_FILE, &credential)?;
    Ok(credential)
}
