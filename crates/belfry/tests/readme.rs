//! The README's five commands, as they stand there, from nothing to a followed log: as the user of the tests and, where that is
//! root, as an ordinary user too. Only building is left out, and waiting for the banner is done by a loop instead of a person.
#![expect(clippy::disallowed_methods, reason = "the commands of the README are run by a shell")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const READMES: [(&str, &str); 2] =
    [("README.md", include_str!("../../../README.md")), ("README.zh-CN.md", include_str!("../../../README.zh-CN.md"))];

fn commands(readme: &str) -> Vec<&str> {
    let block = readme.split("```console\n").nth(1).expect("a console block").split("```").next().expect("its end");
    block.lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// Runs the block with a home, a data folder and a port of its own, and gives what it printed.
fn follow(ordinary_user: bool) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let home = folder.path().join("home");
    std::fs::create_dir(&home).expect("a home");
    std::fs::copy(env!("CARGO_BIN_EXE_belfry"), folder.path().join("belfry")).expect("the binary");
    for path in [folder.path(), &home] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("rights");
    }
    let script = script(folder.path(), &commands(READMES[0].1));
    let mut shell = if ordinary_user {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "bash"]);
        setpriv
    } else {
        Command::new("bash")
    };
    let output = shell
        .args(["-euc", &script])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", &home)
        .env("BELFRY_LISTEN", "127.0.0.1:0")
        .env("BELFRY_DATA", folder.path().join("home/data"))
        .output()
        .expect("the shell runs");
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "ordinary user: {ordinary_user}: {said}");
    said
}

fn script(folder: &Path, commands: &[&str]) -> String {
    assert_eq!(commands.len(), 5, "five commands");
    assert!(commands[0].starts_with("cargo build --release"), "the first one builds");
    assert_eq!(commands[1], "belfry up &", "the second one starts it");
    format!(
        "export PATH={}:$PATH\n{}\ntrap 'kill $!; wait $!' EXIT\nuntil [ -s \"$BELFRY_DATA/address\" ]; do sleep 0.05; done\n{}\n",
        folder.display(),
        commands[1],
        commands[2..].join("\n"),
    )
}

fn check(said: &str) {
    assert!(said.contains("hello 3 from default/hello"), "the log was followed to its end: {said}");
    assert!(said.contains("admin-password"), "the banner names the password's file: {said}");
    let password_shown = said.lines().any(|line| line.contains("password") && line.contains("also in"));
    assert!(!password_shown, "the password itself is for terminals only: {said}");
}

#[test]
fn five_commands_lead_from_nothing_to_a_followed_log() {
    check(&follow(false));
}

#[test]
fn they_do_so_for_an_ordinary_user() {
    if !nix::unistd::geteuid().is_root() {
        println!("not root: the test above was an ordinary user's");
        return;
    }
    check(&follow(true));
}

#[test]
fn both_languages_have_the_same_commands() {
    assert_eq!(commands(READMES[0].1), commands(READMES[1].1), "{} and {}", READMES[0].0, READMES[1].0);
}
