//! `belfry server`: API and scheduling without an agent; agents connect to it. In this version on the embedded database and on
//! loopback addresses only: what a cluster needs is refused by name.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use belfry_control::{ControlConfig, Tasks};
use belfry_coord::{Clock, SystemClock};
use belfry_core::units::Span;

use crate::cli::ServerArgs;
use crate::client::default_data_dir;
use crate::serve::{self, DataDir, Embedded, Http};
use crate::up;

const TTL_MIN: Span = Span::from_secs(2);
const CREDENTIAL_FILE: &str = "agent-credential";

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
    let embedded = Embedded::open(&data).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    up::first_admin(&data, &embedded.store, &*clock).await?;
    up::cli_token(&data, &embedded.store, &*clock).await?;
    let credential = agent_credential(&data)?;
    let config = ControlConfig {
        ttl: args.ttl.map_or(ControlConfig::default().ttl, Span::get),
        agent_credential: Some(credential),
        ..ControlConfig::default()
    };
    let control = up::start_control(config, &embedded, clock.clone()).await?;
    let agents = control
        .listen_for_agents(args.listen_agents.unwrap_or(([127, 0, 0, 1], 8788).into()))
        .await
        .context("the address for agents cannot be listened on; choose another with --listen-agents")?;
    let tasks = Tasks::default();
    let address = http.address;
    let stop_http = http.serve(&tasks, up::api(&embedded.store, &control, &timezone, clock, &tasks)?);
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
    for (flag, value) in [("--store", &args.store), ("--coordinator", &args.coordinator)] {
        if let Some(url) = value {
            let kind = url.split(':').next().unwrap_or_default();
            bail!("{flag}: `{kind}` is not supported yet; leave it out, the embedded SQLite in --data is used");
        }
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

/// Shared by the agents of this machine until each gets its own.
fn agent_credential(data: &DataDir) -> anyhow::Result<String> {
    if let Some(credential) = data.read_secret(CREDENTIAL_FILE) {
        return Ok(credential);
    }
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|cause| anyhow::anyhow!("no random numbers: {cause}"))?;
    let credential: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    data.write_secret(CREDENTIAL_FILE, &credential)?;
    Ok(credential)
}
