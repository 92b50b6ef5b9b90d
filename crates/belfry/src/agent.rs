//! `belfry agent`: executes what a server dispatches to it.

use std::process::ExitCode;

use anyhow::Context;
use belfry_agent::{Agent, AgentConfig};
use belfry_control::Tasks;
use belfry_core::join::JoinToken;
use belfry_core::units::Size;
use tokio_util::sync::CancellationToken;

use crate::cli::AgentArgs;
use crate::serve;

pub fn run(args: AgentArgs) -> anyhow::Result<ExitCode> {
    serve::init_logging();
    serve::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(work(args))?;
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

async fn work(args: AgentArgs) -> anyhow::Result<()> {
    let folder = args.data.clone().unwrap_or_else(serve::default_agent_dir);
    let local_api = match args.local_api {
        Some(address) => Some(serve::LocalApi::bind(address).await?),
        None => None,
    };
    let agent = Agent::start(AgentConfig {
        data_dir: folder.clone(),
        name: args.name.clone().unwrap_or_else(serve::host_name),
        labels: args.labels.iter().map(|label| (label.0.clone(), label.1.clone())).collect(),
        slots: args.slots.unwrap_or_else(serve::default_slots),
        allow_root: args.allow_root,
        default_user: args.default_user.clone(),
        policy: args.policy.clone().or_else(serve::default_policy),
        quit_time: args.quit_time.get(),
        spool_max_bytes: args.spool_max.bytes(),
        run_logs: args.run_logs.config(),
        disk_floor_bytes: args.disk_floor.map(Size::bytes),
        zygote: serve::own_zygote(),
        join: args.join.clone().map(|token| through(token, &args.servers)),
    })
    .await
    .context("start the agent")?;
    tracing::info!(node = %agent.node(), "ready; jobs run as {}", agent.runs_as());
    let tasks = Tasks::default();
    if let Some(local_api) = local_api {
        local_api.serve(agent.clone(), &folder, &tasks)?;
    }
    let shutdown = CancellationToken::new();
    let (ended, mut session_ended) = tokio::sync::oneshot::channel();
    // On its own: the session must outlive the signal, for results are delivered while the agent drains.
    tasks.spawn("sessions with servers", {
        let (agent, servers, shutdown) = (agent.clone(), args.servers.clone(), shutdown.clone());
        async move {
            let _ = ended.send(agent.run_remote(servers, shutdown).await);
        }
    });
    let signal = tokio::select! {
        ended = &mut session_ended => return ended?.context("reach the servers"),
        signal = serve::stop_signal(&tasks) => signal?,
    };
    tracing::info!("{signal}: nothing new is taken; running work has {} to finish", args.quit_time);
    agent.drain(&format!("the agent was stopped by {signal}")).await;
    shutdown.cancel();
    Ok(())
}

/// Addresses on the command line are better known than those in the token.
fn through(token: JoinToken, servers: &[String]) -> JoinToken {
    if servers.is_empty() { token } else { JoinToken { addresses: servers.to_vec(), ..token } }
}
