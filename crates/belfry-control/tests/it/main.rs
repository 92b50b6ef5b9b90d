//! Servers on a coordinator in memory, with agents whose every word the test says.

mod claims;
mod cluster;
mod flood;
mod placement;
mod retry;
mod service;
mod state;
mod store_away;
mod support;
mod takeover;
mod unheard;
mod unknown_jobs;
mod watches;
mod wrapped;

#[test]
fn planted_bugs_are_caught() {
    belfry_testkit::planted::are_caught_in("belfry-control/it");
}
