//! `belfry up`: server, agent and embedded database in one process, for one machine.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use belfry_agent::{Agent, AgentConfig};
use belfry_api::{ApiSettings, ApiState};
use belfry_control::{Control, ControlConfig, Tasks};
use belfry_coord::{Clock, SystemClock};
use belfry_core::ServerId;
use belfry_core::job::{KILL_GRACE_DEFAULT, Timeout, TimeoutAction};
use belfry_core::role::{Grants, Role};
use belfry_core::units::{Size, Span};
use belfry_store::{SecretHash, Store, TokenOwner};

use crate::cli::{TimeoutWord, UpArgs};
use crate::client::default_data_dir;
use crate::serve::banner::Banner;
use crate::serve::{self, Backends, Ca, DataDir, Http, WebhookPost};

const PASSWORD_FILE: &str = "admin-password";
const TOKEN_FILE: &str = "cli-token";
const ADDRESS_FILE: &str = "address";

pub fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    serve::init_logging();
    serve::raise_open_files();
    serve::use_small_pages();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(up(args))?;
    // What is still spawned serves nobody any more.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn up(args: UpArgs) -> anyhow::Result<()> {
    let default_dir = default_data_dir();
    let default_data = args.data.is_none() || args.data == default_dir;
    let folder =
        args.data.clone().or(default_dir).context("no home folder is known; choose a data folder with --data")?;
    let data = DataDir::open(folder)?;
    let http = Http::bind(&args.http).await?;
    let local_api = match args.local_api {
        Some(address) => Some(serve::LocalApi::bind(address).await?),
        None => None,
    };
    let timezone = timezone(args.default_timezone.as_deref())?;
    let node_name = args.name.clone().unwrap_or_else(serve::host_name);
    let backends = Backends::embedded(&data).await?;

    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let new_password = first_admin(&data, &backends.store, &*clock).await?;
    cli_token(&data, &backends.store, &*clock).await?;

    let config = ControlConfig {
        default_timeout: default_timeout(args.default_timeout, args.default_timeout_action)?,
        post: Some(Arc::new(WebhookPost::new(&args.webhook_allow)?)),
        ..ControlConfig::default()
    };
    let control = start_control(config, &backends, clock.clone()).await?;
    let agent = Agent::start(AgentConfig {
        data_dir: data.file("agent"),
        name: node_name,
        labels: Default::default(),
        slots: args.slots.unwrap_or_else(serve::default_slots),
        allow_root: args.allow_root,
        default_user: args.default_user.clone(),
        policy: args.policy.clone().or_else(serve::default_policy),
        quit_time: args.quit_time.get(),
        spool_max_bytes: args.spool_max.bytes(),
        run_logs: args.run_logs.config(),
        disk_floor_bytes: args.disk_floor.map(Size::bytes),
        zygote: serve::own_zygote(),
        join: None,
    })
    .await
    .context("start the agent")?;
    let link = agent.connect_local();
    control.connect_local(link.to_agent, link.from_agent);

    let tasks = Tasks::default();
    if let Some(local_api) = local_api {
        local_api.serve(agent.clone(), &data.file("agent"), &tasks)?;
    }
    let (address, url) = (http.address, http.local_url());
    let ca = Ca::of_cluster(&backends.store, clock.now()).await?;
    let settings =
        ApiSettings { default_timezone: timezone.clone(), secure_cookie: http.has_tls(), ..ApiSettings::default() };
    let stop_http = http.serve(&tasks, api(&backends.store, &control, settings, clock, &tasks)?, &ca, &[])?;
    data.write_secret("ca.pem", ca.certificate.trim_end())?;
    data.write_secret(ADDRESS_FILE, &url)?;
    Banner {
        url: &url,
        address,
        data: data.path(),
        new_password: new_password.as_deref(),
        timezone: &timezone,
        runs_as: agent.runs_as(),
        default_data,
    }
    .print();

    let signal = serve::stop_signal(&tasks).await?;
    tracing::info!("{signal}: nothing new is started; running work has {} to finish", args.quit_time);
    control.stop_claiming();
    agent.drain(&format!("belfry was stopped by {signal}")).await;
    control.stop().await;
    data.remove(ADDRESS_FILE);
    let _ = stop_http.send(());
    tracing::info!("stopped");
    Ok(())
}

pub fn timezone(asked: Option<&str>) -> anyhow::Result<String> {
    match asked {
        Some(zone) => {
            belfry_core::schedule::time_zone(zone).map_err(|cause| anyhow::anyhow!("--default-timezone: {cause}"))?;
            Ok(zone.to_owned())
        }
        None => Ok(serve::machine_timezone()),
    }
}

/// For jobs that have none of their own.
pub fn default_timeout(after: Option<Span>, action: Option<TimeoutWord>) -> anyhow::Result<Option<Timeout>> {
    match after {
        Some(after) if after.is_zero() => anyhow::bail!("default_timeout: `0s` would end every run at once"),
        Some(after) => {
            let action = action.map(TimeoutAction::from).unwrap_or_default();
            Ok(Some(Timeout { after, action, grace: KILL_GRACE_DEFAULT }))
        }
        None if action.is_some() => {
            anyhow::bail!("--default-timeout-action: say after which time with --default-timeout")
        }
        None => Ok(None),
    }
}

pub async fn start_control(
    config: ControlConfig,
    backends: &Backends,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Control> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|cause| anyhow::anyhow!("no random numbers: {cause}"))?;
    let server = ServerId::new(clock.now(), u128::from_be_bytes(random));
    Ok(Control::start(config, server, backends.coordinator.clone(), backends.store.clone(), clock).await?)
}

pub fn api(
    store: &Store,
    control: &Control,
    settings: ApiSettings,
    clock: Arc<dyn Clock>,
    tasks: &Tasks,
) -> anyhow::Result<axum::Router> {
    let handle = belfry_api::metrics::install().context("install the metrics recorder")?;
    tasks.spawn("metrics upkeep", belfry_api::metrics::upkeep(handle.clone()));
    let state =
        ApiState::new(store.clone(), control.clone(), settings, Arc::new(move || clock.now())).with_metrics(handle);
    tasks.spawn("contact with the store", state.clone().keep_contact());
    Ok(belfry_api::router(state))
}

/// No default password: the first start makes a random one and keeps it in a file that only its owner can read.
pub async fn first_admin(data: &DataDir, store: &Store, clock: &dyn Clock) -> anyhow::Result<Option<String>> {
    let password = belfry_api::ensure_admin(store, clock.now()).await?;
    if let Some(password) = &password {
        data.write_secret(PASSWORD_FILE, password)?;
    }
    Ok(password)
}

/// Lets the command line on this machine in, for whoever can read the data folder.
pub async fn cli_token(data: &DataDir, store: &Store, clock: &dyn Clock) -> anyhow::Result<()> {
    if let Some(secret) = data.read_secret(TOKEN_FILE)
        && store.token_of(SecretHash::of(&secret), clock.now()).await?.is_some()
    {
        return Ok(());
    }
    let owner = TokenOwner::Service("cli".to_owned());
    let secret = belfry_api::create_token(
        store,
        owner,
        "command line on this machine",
        Grants::everywhere(Role::Admin),
        clock.now(),
    )
    .await?;
    data.write_secret(TOKEN_FILE, &secret)
}
