//! The agent with real processes, through a session in which the test plays the server.

#![allow(
    clippy::disallowed_methods,
    reason = "a test plays the world around the agent: it starts processes and reads clocks"
)]

mod clock;
mod crash;
mod delivery;
mod execution;
mod identity;
mod limits;
mod orders;
mod policy;
mod remote;
mod script;
mod server;
mod signature;
mod state;
mod timing;
mod trust;

#[test]
fn planted_bugs_are_caught() {
    belfry_testkit::planted::are_caught_in("belfry-agent/it");
}
