//! What a process gets, and what its end means.

use belfry_testkit::Layout;
use serde_json::json;

use crate::start;

pub async fn a_run_has_the_documented_environment(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("env", "env", json!({"as": {"env": {"COLOUR": "blue"}}})).await;
    let run = client.run_to_end("env").await;
    let text = client.output_text(&run.id).await;
    let get = |name: &str| text.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap_or("(absent)");
    assert_eq!(get("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let user = if nix::unistd::Uid::effective().is_root() { "nobody".to_owned() } else { get("USER").to_owned() };
    assert_eq!((get("USER"), get("LOGNAME")), (user.as_str(), user.as_str()));
    for name in ["HOME", "SHELL", "LANG", "BELFRY_NODE", "BELFRY_NODE_ID", "BELFRY_INCARNATION"] {
        assert!(!["", "(absent)"].contains(&get(name)), "{name} is missing in\n{text}");
    }
    assert_eq!((get("COLOUR"), get("BELFRY_JOB"), get("BELFRY_ATTEMPT")), ("blue", "default/env", "1"));
    assert_eq!((get("BELFRY_RUN_ID"), get("BELFRY_FENCE")), (run.id.as_str(), run.fence.to_string().as_str()));
    assert_eq!(get("BELFRY_SCHEDULED_AT").parse().ok(), Some(run.planned));
    assert_eq!(get("BELFRY_TESTKIT"), "(absent)", "nothing of the agent's own environment is passed on");
}

pub async fn the_exit_code_decides_and_is_recorded(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("good", "exit 0", json!({})).await;
    client.add("bad", "exit 7", json!({})).await;
    client.add("shot", "kill -SEGV $$", json!({})).await;
    let good = client.run_to_end("good").await;
    assert_eq!((good.state.as_str(), good.exit_code), ("succeeded", Some(0)));
    let bad = client.run_to_end("bad").await;
    assert_eq!((bad.state.as_str(), bad.exit_code), ("failed", Some(7)));
    let shot = client.run_to_end("shot").await;
    assert_eq!((shot.state.as_str(), shot.exit_code, shot.signal), ("failed", None, Some(11)));
}

pub async fn a_command_that_is_not_found_names_the_path_that_was_searched(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("shell", "no-such-command --now", json!({})).await;
    client.add("exec", "", json!({"action": {"exec": {"argv": ["no-such-command", "--now"]}}})).await;
    for job in ["shell", "exec"] {
        let run = client.run_to_end(job).await;
        let said = format!("{} {}", run.why(), client.output_text(&run.id).await);
        assert_eq!((run.state.as_str(), run.exit_code), ("failed", Some(127)), "{job}: {said}");
        assert!(said.contains("/usr/local/bin") && said.contains("no-such-command"), "{job}: {said}");
    }
}

pub async fn exec_takes_its_arguments_as_they_are(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let argv = json!({"action": {"exec": {"argv": ["printf", "%s|", "a b", "$HOME", "*"]}}});
    client.add("exec", "", argv).await;
    let run = client.run_to_end("exec").await;
    assert_eq!(client.output_text(&run.id).await, "a b|$HOME|*|");
}

pub async fn stdin_is_empty_and_the_directory_is_the_jobs(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("here", "cat; pwd; umask", json!({"as": {"directory": "/usr", "umask": "027"}})).await;
    let run = client.run_to_end("here").await;
    assert_eq!(client.output_text(&run.id).await, "/usr\n0027\n");
}
