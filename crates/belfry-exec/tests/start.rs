//! What a child is given and how it ends: real processes.
#![expect(clippy::disallowed_methods, reason = "tests spawn as they like")]

mod support;

use std::os::unix::fs::PermissionsExt;

use belfry_exec::{CLEAN_PATH, ExitStatus, Identity, Prepared, SpawnError, lookup_user};
use support::{a_file_with, exec, in_time, run, shell, spawner, we_are_root};

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let spawner = spawner();
    for code in [0, 1, 75, 255] {
        assert_eq!(run(&spawner, shell(&format!("exit {code}"))).await.code(), ExitStatus::Code(code));
    }
    assert_eq!(run(&spawner, shell("kill -KILL $$")).await.code(), ExitStatus::Signal(9));
    assert_eq!(run(&spawner, shell("kill -SEGV $$")).await.code(), ExitStatus::Signal(11));
}

#[tokio::test]
async fn stdin_is_what_is_given_or_empty() {
    let spawner = spawner();
    assert_eq!(run(&spawner, shell("cat")).await.stdout, "");
    assert_eq!(run(&spawner, Prepared { stdin: a_file_with("one\ntwo\n"), ..shell("cat") }).await.stdout, "one\ntwo\n");
}

#[tokio::test]
async fn an_exit_says_what_was_used_and_when() {
    let ran = run(&spawner(), shell("i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")).await;
    assert!(ran.exit.cpu_user + ran.exit.cpu_system > std::time::Duration::from_millis(5), "{:?}", ran.exit);
    assert!(ran.exit.max_rss_bytes > 512 * 1024);
    assert_eq!(ran.exit.left_behind, 0);
}

#[tokio::test]
async fn a_program_that_is_not_found_names_the_path_searched() {
    let refusal = spawner().spawn(exec(["belfry-no-such-program"])).await.err().expect("a refusal");
    assert_eq!((refusal.exit_code(), refusal.is_transient()), (127, false));
    assert!(refusal.to_string().contains(&format!("not found; PATH was {CLEAN_PATH}")), "{refusal}");
    let refusal = spawner().spawn(exec(["/no/such/program"])).await.err().expect("a refusal");
    assert_eq!(refusal, SpawnError::NoSuchFile { program: "/no/such/program".into() });
}

#[tokio::test]
async fn a_program_is_found_in_the_childs_path_and_not_in_the_agents() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("belfry-hello");
    std::fs::write(&program, "#!/bin/sh\necho hello").expect("a script");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("chmod");
    let mut what = exec(["belfry-hello"]);
    what.env = vec![("PATH".into(), format!("/nowhere:{}", folder.path().display()).into())];
    assert_eq!(run(&spawner(), what).await.stdout, "hello\n");
}

#[tokio::test]
async fn a_file_that_cannot_be_executed_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, mode, body, expected) in [
        ("plain", 0o644, "#!/bin/sh\n", "chmod +x"),
        ("text", 0o755, "no first line", "#!/bin/sh"),
        ("strange", 0o755, "#!/no/such/interpreter\n", "interpreter"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, body).expect("a file");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("chmod");
        let refusal = spawner().spawn(exec([file])).await.err().expect("a refusal");
        assert_eq!(refusal.exit_code(), 126, "{refusal}");
        assert!(refusal.to_string().contains(expected), "{name}: {refusal}");
    }
}

#[tokio::test]
async fn a_directory_that_is_missing_is_named() {
    let mut what = shell("pwd");
    what.directory = Some("/no/such/folder".into());
    let refusal = spawner().spawn(what).await.err().expect("a refusal");
    assert!(matches!(refusal, SpawnError::Directory { .. }), "{refusal:?}");
    assert!(refusal.to_string().contains("/no/such/folder"));
    let mut what = shell("pwd");
    what.directory = Some("/usr".into());
    assert_eq!(run(&spawner(), what).await.stdout, "/usr\n");
    assert_eq!(run(&spawner(), shell("pwd")).await.stdout, "/\n");
}

#[tokio::test]
async fn a_child_on_a_file_system_that_might_hang_is_started_all_the_same() {
    let spawner = spawner();
    // Neither disk nor memory: started by a copy of the zygote, so that a dead mount would hold up nobody else.
    let in_sys = |command| belfry_exec::Prepared { directory: Some("/sys".into()), ..shell(command) };
    let ran = run(&spawner, in_sys("pwd; exit 6")).await;
    assert_eq!((ran.stdout.as_str(), ran.code()), ("/sys\n", ExitStatus::Code(6)));
    let refusal = spawner.spawn(belfry_exec::Prepared { directory: Some("/sys/none".into()), ..shell("pwd") }).await;
    assert!(matches!(refusal, Err(SpawnError::Directory { .. })));
}

#[tokio::test]
async fn a_command_of_100_kib_runs_and_a_longer_one_is_refused_with_the_limit() {
    let spawner = spawner();
    let long = format!("echo {}", "x".repeat(100 * 1024));
    assert_eq!(run(&spawner, shell(&long)).await.stdout.len(), 100 * 1024 + 1);
    let refusal = spawner.spawn(shell(&"x".repeat(200 * 1024))).await.err().expect("a refusal");
    assert!(matches!(refusal, SpawnError::TooLong { bytes: 204_800, .. }), "{refusal:?}");
    // 1.5 MB in all is within the kernel's limit, 4 MB are not: both cross the socket.
    let many = |count| exec(std::iter::once("/bin/true".to_owned()).chain((0..count).map(|_| "y".repeat(100_000))));
    assert_eq!(run(&spawner, many(15)).await.code(), ExitStatus::Code(0));
    let refusal = spawner.spawn(many(40)).await.err().expect("a refusal");
    assert!(matches!(refusal, SpawnError::TooLong { .. }), "{refusal:?}");
    assert_eq!(run(&spawner, shell("exit 3")).await.code(), ExitStatus::Code(3));
}

#[tokio::test]
async fn text_that_no_process_can_be_given_is_refused() {
    let empty: [&str; 0] = [];
    for what in [exec(empty), exec([""]), exec(["/bin/echo", "a\0b"])] {
        let refusal = spawner().spawn(what).await.err().expect("a refusal");
        assert!(matches!(refusal, SpawnError::NotText { .. }), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_child_has_its_own_session_no_stdin_no_other_descriptors_and_its_umask() {
    let spawner = spawner();
    let mut what = shell(
        "cat; ls -l /proc/self/fd | sed 's/.* //' ; umask; awk '{print $1, $5, $6}' /proc/$$/stat; exec cat /proc/self/status",
    );
    what.umask = Some(0o027);
    let ran = run(&spawner, what).await;
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.iter().filter(|line| line.contains("/dev/null")).count(), 1, "{}", ran.stdout);
    assert_eq!(lines.iter().filter(|line| line.starts_with("pipe:")).count(), 2, "{}", ran.stdout);
    assert!(!ran.stdout.contains("socket:"), "{}", ran.stdout);
    assert!(lines.contains(&"0027"));
    let ids = lines
        .iter()
        .find(|line| line.split(' ').count() == 3 && line.starts_with(|c: char| c.is_ascii_digit()))
        .expect("three ids");
    let ids: Vec<&str> = ids.split(' ').collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "pid, group and session are one: {ids:?}");
    for field in ["SigBlk", "SigIgn", "SigPnd", "ShdPnd"] {
        let value = lines.iter().find_map(|line| line.strip_prefix(field)).expect(field);
        assert_eq!(value.trim_matches([':', '\t']), "0000000000000000", "{field}");
    }
}

#[tokio::test]
async fn the_environment_is_what_was_prepared_and_the_tag() {
    let mut what = exec(["/usr/bin/env"]);
    what.env.push(("BELFRY_RUN_ID".into(), "a lie".into()));
    let tag = what.tag.clone();
    let ran = run(&spawner(), what).await;
    let mut names: Vec<&str> = ran.stdout.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["BELFRY_ATTEMPT", "BELFRY_RUN_ID", "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"]);
    assert!(ran.stdout.contains(&format!("BELFRY_RUN_ID={}\n", tag.run)));
}

#[tokio::test]
async fn a_child_of_another_user_has_that_users_ids_and_groups_and_no_other() {
    if !we_are_root() {
        return;
    }
    let nobody = lookup_user("nobody").expect("nobody");
    let mut what = exec(["/bin/cat", "/proc/self/status"]);
    what.identity = Some(Identity { groups: vec![4, nobody.gid], ..nobody.identity() });
    let status = run(&spawner(), what).await.stdout;
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).expect("a field").split_whitespace().collect::<Vec<_>>()
    };
    let (uid, gid) = (nobody.uid.to_string(), nobody.gid.to_string());
    assert_eq!(field("Uid:"), [&uid; 4]);
    assert_eq!(field("Gid:"), [&gid; 4]);
    assert_eq!(field("Groups:"), ["4", &gid]);
    assert_eq!(field("CapEff:"), ["0000000000000000"]);
}

#[tokio::test]
async fn a_directory_is_entered_as_the_user_who_runs_the_job() {
    if !we_are_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder only root may enter");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).expect("chmod");
    let mut what = shell("pwd");
    what.identity = Some(lookup_user("nobody").expect("nobody").identity());
    what.directory = Some(folder.path().to_owned());
    let refusal = spawner().spawn(what).await.err().expect("a refusal");
    assert!(matches!(refusal, SpawnError::Directory { .. }), "{refusal:?}");
}

#[tokio::test]
async fn five_hundred_children_run_at_once() {
    let spawner = spawner();
    let starts: Vec<_> = (0..500)
        .map(|number| {
            let spawner = spawner.clone();
            tokio::spawn(async move { run(&spawner, shell(&format!("echo {number}; exit {}", number % 200))).await })
        })
        .collect();
    for (number, ran) in starts.into_iter().enumerate() {
        let ran = in_time("a child", ran).await.expect("no panic");
        assert_eq!((ran.stdout, ran.exit.status), (format!("{number}\n"), ExitStatus::Code(number as i32 % 200)));
    }
}
