//! The command line where no server is needed: schedules, usage errors, bad files, completions, and what it says when nobody answers.

use std::fs;

use assert_cmd::Command;

/// A command that finds nothing of the machine it runs on.
fn belfry(home: &tempfile::TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belfry"));
    command.env_clear().env("HOME", home.path()).env("BELFRY_DATA", home.path().join("data")).env("TZ", "UTC");
    command
}

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(words: &[&str]) -> Ran {
    run_with(&tempfile::tempdir().unwrap(), words, &[])
}

fn run_with(home: &tempfile::TempDir, words: &[&str], env: &[(&str, &str)]) -> Ran {
    let output = belfry(home).args(words).envs(env.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().expect("it exits by itself"), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn next_prints_instants_for_programs() {
    let ran = run(&["next", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-03-28T12:00", "-n", "2", "--json"]);
    let instants: Vec<String> = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code, instants), (0, vec!["2026-03-29T01:00:00Z".to_owned(), "2026-03-30T00:30:00Z".to_owned()]));
}

#[test]
fn next_tells_people_what_the_clock_does() {
    let ran = run(&["next", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-03-28T12:00", "-n", "2"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(ran.code, 0);
    assert!(lines[0].starts_with("FIRES AT"), "{}", ran.out);
    assert!(
        lines[1].starts_with("2026-03-29T03:00:00+02:00  Sun")
            && lines[1].ends_with("02:30:00 is skipped by the clock"),
        "{}",
        ran.out
    );
    assert!(lines[2].starts_with("2026-03-30T02:30:00+02:00  Mon"), "{}", ran.out);
    assert!(!ran.out.contains('\x1b'), "no colour in a pipe");
    assert_eq!(ran.err, "zone Europe/Berlin\n");
}

#[test]
fn next_obeys_the_rules_for_clock_changes() {
    let fires = |extra: &[&str]| {
        let mut words = vec!["next", "30 2 * * *", "--tz", "Europe/Berlin", "--json", "-n", "2"];
        words.extend(extra);
        serde_json::from_str::<Vec<String>>(&run(&words).out).unwrap()
    };
    assert_eq!(fires(&["--from", "2026-03-28T12:00", "--dst-gap", "skip"])[0], "2026-03-30T00:30:00Z");
    assert_eq!(
        fires(&["--from", "2026-10-24T12:00", "--dst-overlap", "both"]),
        ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]
    );
    assert_eq!(fires(&["--from", "2026-10-24T12:00", "--dst-overlap", "last"])[0], "2026-10-25T01:30:00Z");
}

#[test]
fn several_schedules_on_one_instant_are_one_fire() {
    let ran = run(&["next", "0 * * * *", "*/30 * * * *", "--from", "2026-07-01T00:00:00Z", "-n", "3", "--json"]);
    let instants: Vec<String> = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(instants, ["2026-07-01T00:30:00Z", "2026-07-01T01:00:00Z", "2026-07-01T01:30:00Z"]);
}

#[test]
fn the_hash_in_a_schedule_follows_the_job() {
    let fire = |job: &str| run(&["next", "H H * * *", "--job", job, "--from", "2026-07-01", "-n", "1", "--json"]).out;
    assert_eq!(fire("backup"), fire("default/backup"));
    assert_ne!(fire("backup"), fire("other/backup"));
}

#[test]
fn a_schedule_that_depends_on_runs_has_no_instants() {
    let ran = run(&["next", "@after 90s", "--json"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "[]\n"));
    assert!(ran.err.contains("1m30s after the end of each run"), "{}", ran.err);
    let over = run(&["next", "@at 2020-01-01T00:00:00Z", "--from", "2026-07-01"]);
    assert_eq!((over.code, over.err.contains("never fires after 2026-07-01")), (1, true), "{}", over.err);
}

#[test]
fn a_bad_schedule_is_refused_with_field_and_value() {
    for (words, expected) in [
        (&["next", "61 * * * *"][..], "61"),
        (&["next", "* * *"], "3 fields"),
        (&["next", "0", "4", "1", "1", "1"], "put the schedule in quotes: belfry next '0 4 1 1 1'"),
        (&["next", "0 0 30 2 *"], "never fires"),
        (&["next", "@daily", "--tz", "Mars/Olympus"], "Mars/Olympus"),
        (&["next", "@daily", "--from", "yesterday"], "is not a moment"),
        (&["next", "@daily", "-n", "0"], "0 is not in 1..=10000"),
    ] {
        let ran = run(words);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{words:?}");
        assert!(ran.err.contains(expected), "{words:?}: {}", ran.err);
    }
}

#[test]
fn usage_errors_exit_with_2_and_say_what_is_missing() {
    for (words, expected) in [
        (&["job", "add"][..], "<NAME>"),
        (&["job", "add", "a", "--cron", "@daily"], "COMMAND"),
        (&["job", "add", "a", "--cron", "@daily", "--every", "5m", "--", "true"], "cannot be used with"),
        (&["job", "add", "Upper", "--", "true"], "Upper"),
        (&["job", "add", "a", "--env", "novalue", "--", "true"], "is not KEY=VALUE"),
        (&["run", "logs", "Not An Id"], "neither a run's id"),
        (&["run", "ls", "--state", "done"], "succeeded"),
        (&["node", "set", "n1"], "--weight"),
        (&["backup"], "unrecognized subcommand"),
        (&["jobs", "ls"], "job"),
        (&["up", "--url", "http://a"], "--url is for commands that ask a server"),
    ] {
        let ran = run(words);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{words:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{words:?}: {}", ran.err);
    }
}

#[test]
fn bad_files_name_file_document_and_field_before_any_server_is_asked() {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
    write(
        "two.yaml",
        "name: a\naction: {shell: {command: 'true'}}\n---\nname: b\naction: {shell: {command: 'true'}}\nretry: {attempts: 2, delay: 5}\n",
    );
    write("zone.toml", "name = 'a'\ntimezone = 'Mars/Olympus'\naction.shell.command = 'true'\n");
    write("cut.json", "[{\"name\": \"a\",");
    write("notes.txt", "name: a");
    for (file, expected) in [
        ("two.yaml", "two.yaml: document 2: retry.delay: "),
        ("zone.toml", "zone.toml: document 1: timezone: "),
        ("cut.json", "cut.json: document 1: EOF"),
        ("notes.txt", "must end in .yaml"),
        ("missing.yaml", "missing.yaml: No such file"),
    ] {
        for verb in ["apply", "diff"] {
            let ran = run_with(&home, &["job", verb, home.path().join(file).to_str().unwrap()], &[]);
            assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{file}: {}", ran.err);
            assert!(ran.err.contains(expected), "{file}: {}", ran.err);
        }
    }
}

#[test]
fn without_a_server_it_says_what_to_try() {
    for words in [&["job", "ls"][..], &["run", "logs", "-f", "a"], &["whoami"], &["job", "add", "a", "--", "true"]] {
        let ran = run(words);
        assert_eq!((ran.code, ran.out.as_str()), (4, ""), "{words:?}");
        assert!(ran.err.contains("belfry up") && ran.err.contains("--url"), "{}", ran.err);
    }
    let nobody = run(&["job", "ls", "--url", "http://127.0.0.1:1"]);
    assert_eq!(nobody.code, 4);
    assert!(nobody.err.contains("http://127.0.0.1:1 does not answer"), "{}", nobody.err);
    let no_ca = run(&["job", "ls", "--url", "https://127.0.0.1:1", "--ca", "/nowhere/ca.pem"]);
    assert_eq!((no_ca.code, no_ca.err.contains("--ca /nowhere/ca.pem: No such file")), (2, true), "{}", no_ca.err);
}

#[test]
fn doctor_and_config_work_without_a_server() {
    let ran = run(&["doctor"]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("server found") && ran.out.contains("wrong"), "{}", ran.out);
    let findings: serde_json::Value = serde_json::from_str(&run(&["doctor", "--json"]).out).unwrap();
    assert_eq!(findings[0]["verdict"], "wrong");
    let home = tempfile::tempdir().unwrap();
    let shown =
        run_with(&home, &["config", "show", "--json"], &[("BELFRY_URL", "http://h:1/"), ("BELFRY_TOKEN", "secret")]);
    let config: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!((config["url"].as_str(), config["token"].as_bool()), (Some("http://h:1"), Some(true)));
    assert!(!shown.out.contains("secret") && !shown.err.contains("secret"));
}

#[test]
fn a_folder_on_the_command_line_beats_an_address_in_the_environment() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("other");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("address"), "http://127.0.0.1:2\n").unwrap();
    fs::write(data.join("cli-token"), "t\n").unwrap();
    let env = [("BELFRY_URL", "http://h:1"), ("BELFRY_TOKEN", "e")];
    let ran = run_with(&home, &["config", "show", "--json", "--data", data.to_str().unwrap()], &env);
    let config: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(config["url"], "http://127.0.0.1:2");
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("belfry") && ran.out.contains("rerun"), "{shell}");
    }
}

#[test]
fn help_documents_exit_codes_and_only_what_exists() {
    let ran = run(&["--help"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for line in ["Exit codes:", "  0  done", "  3  no such job", "  4  no server could be reached", "BELFRY_URL"] {
        assert!(ran.out.contains(line), "{line} in\n{}", ran.out);
    }
    for later in ["backup", "channel"] {
        assert!(!ran.out.contains(later), "{later}");
    }
    assert!(run(&["job", "diff", "--help"]).out.contains("exit code 1"));
    let bare = run(&[]);
    assert_eq!((bare.code, bare.err.contains("Usage: belfry")), (2, true));
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let home = tempfile::tempdir().unwrap();
    let line = r#""$BELFRY" next '* * * * * *' -n 10000 2>"$HOME/err" | head -n 1 >/dev/null; echo "${PIPESTATUS[0]}""#;
    let mut bash = Command::new("bash");
    bash.args(["-c", line]).env("BELFRY", env!("CARGO_BIN_EXE_belfry")).env("HOME", home.path()).env("TZ", "UTC");
    assert_eq!(bash.output().unwrap().stdout, b"0\n");
    let said = fs::read_to_string(home.path().join("err")).unwrap();
    assert!(!said.contains("panicked") && !said.contains("pipe"), "{said}");
}
