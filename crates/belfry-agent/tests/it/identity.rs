//! As who a run goes. Other users need an agent that is root: without it these tests have nothing to look at.

use belfry_exec::{current_user, lookup_user};
use serde_json::{Value, json};

use crate::server::{Server, config, start, start_with, stdout, with_document};

fn we_are_root() -> bool {
    current_user().uid == 0
}

fn job(command: &str, run_as: Value) -> Value {
    json!({"name": "job", "action": {"shell": {"command": command}}, "as": run_as})
}

/// The lines of /proc/self/status of a run.
async fn status(server: &mut Server, run: u32, run_as: Value) -> String {
    server.dispatch(with_document(run, &job("cat /proc/self/status", run_as))).await;
    let (chunks, ended) = server.result(run).await;
    assert_eq!(ended.outcome, "succeeded", "{}", ended.reason);
    stdout(&chunks)
}

fn field<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} in {status}")).split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_its_users_ids_groups_home_and_environment_and_nothing_of_root() {
    if !we_are_root() {
        return;
    }
    // A user with a group beside its own, as the tests' database brings one.
    let user = lookup_user("postgres").or_else(|_| lookup_user("backup")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let run_as = json!({"user": user.user});
    let status = status(&mut server, 1, run_as.clone()).await;
    assert_eq!(field(&status, "Uid"), [user.uid.to_string().as_str(); 4]);
    assert_eq!(field(&status, "Gid"), [user.gid.to_string().as_str(); 4]);
    let mut groups = user.groups.clone();
    groups.sort_unstable();
    let mut found: Vec<u32> = field(&status, "Groups").iter().map(|group| group.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, groups);
    for capabilities in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(&status, capabilities), ["0000000000000000"], "{capabilities}");
    }
    assert_eq!(field(&status, "NoNewPrivs"), ["1"]);
    server.dispatch(with_document(2, &job("echo $HOME $USER $LOGNAME; pwd; exec ls /proc/self/fd", run_as))).await;
    let said = stdout(&server.result(2).await.0);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("{} {} {}", user.home.display(), user.user, user.user));
    assert_eq!(lines[1], user.home.to_str().unwrap());
    assert_eq!(lines[2..], ["0", "1", "2", "3"], "no descriptor is inherited; ls looks through its own at 3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_the_jobs_choice_among_the_groups_of_its_user() {
    if !we_are_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    std::fs::write(&policy, "groups = [\"games\"]\n").unwrap();
    let policy = Some(policy);
    let (_agent, mut server) = start_with(belfry_agent::AgentConfig { policy, ..config(folder.path()) }).await;
    let games = belfry_exec::lookup_group("games").unwrap().to_string();
    let chosen = status(&mut server, 1, json!({"user": "backup", "group": "games"})).await;
    assert_eq!(field(&chosen, "Gid"), [games.as_str(); 4], "the policy allows it");
    let own = status(&mut server, 2, json!({"user": "backup", "group": "backup"})).await;
    assert_eq!(field(&own, "Uid")[0], lookup_user("backup").unwrap().uid.to_string());
    for (run, group) in [(3, "shadow"), (4, "root")] {
        server.dispatch(with_document(run, &job("id", json!({"user": "backup", "group": group})))).await;
        let ended = server.until_ended(run).await;
        assert_eq!(ended.outcome, "skipped");
        assert!(ended.reason.contains(&format!("policy: the user is not in group {group}")), "{}", ended.reason);
    }
    server.dispatch(with_document(5, &job("id", json!({"user": "backup", "group": "nobody-has-this"})))).await;
    let ended = server.until_ended(5).await;
    assert!(ended.reason.contains("groupadd nobody-has-this"), "{}", ended.reason);
}
