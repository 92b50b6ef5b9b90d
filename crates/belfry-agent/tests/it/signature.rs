//! A signed file: the bytes that were looked at are the bytes that run, whatever happens to the file.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::server::{config, start, start_with, stdout, with_document};

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn signed(file: &Path, arguments: &[&str], digests: Value) -> Value {
    let mut argv = vec![file.to_str().unwrap()];
    argv.extend(arguments);
    let mut signature = json!({"file": file});
    signature.as_object_mut().unwrap().extend(digests.as_object().unwrap().clone());
    json!({"name": "job", "action": {"exec": {"argv": argv}}, "signature": signature})
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_and_scripts_run_from_memory_and_know_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let file = folder.path().join("signed");
    let path = file.display().to_string();
    let (shell, perl) = ("echo \"$0\" \"$1\"; exit 3\n", "print join(' ', @ARGV), \"\\n\"; exit 3;\n");
    let cases = [
        (format!("#!/bin/sh\n{shell}"), format!("{path} a b\n")),
        (format!("#!/bin/bash -e\n{shell}"), format!("{path} a b\n")),
        (format!("#!/usr/bin/env bash\n{shell}"), format!("{path} a b\n")),
        (format!("#!/usr/bin/perl -w\n{perl}"), "a b\n".to_owned()),
    ];
    for (run, (text, expected)) in (1..).zip(cases) {
        write(&file, text.as_bytes());
        server.dispatch(with_document(run, &signed(&file, &["a b"], json!({"sha256": sha256(text.as_bytes())})))).await;
        let (chunks, ended) = server.result(run).await;
        assert_eq!((ended.outcome.as_str(), ended.exit_code), ("failed", Some(3)), "{text}: {}", ended.reason);
        assert_eq!(stdout(&chunks), expected, "{text}");
    }
    // A program that is no script; its digest by md5, in capitals.
    let program = fs::read("/bin/cat").unwrap();
    write(&file, &program);
    let md5: String = md5::Md5::digest(&program).iter().map(|byte| format!("{byte:02X}")).collect();
    let document = signed(&file, &["/proc/self/cmdline", "/proc/self/comm"], json!({"md5": md5}));
    server.dispatch(with_document(9, &document)).await;
    let (chunks, ended) = server.result(9).await;
    assert_eq!(ended.outcome, "succeeded", "{}", ended.reason);
    assert!(stdout(&chunks).starts_with(&format!("{path}\0/proc/self/cmdline\0")), "{:?}", stdout(&chunks));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_digest_is_skipped_with_both_and_what_may_not_be_executed_is_not() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (_agent, mut server) =
        start_with(belfry_agent::AgentConfig { allow_root: false, ..config(folder.path()) }).await;
    let file = folder.path().join("signed");
    write(&file, b"#!/bin/sh\necho ran\n");
    let (found, wanted) = (sha256(b"#!/bin/sh\necho ran\n"), sha256(b"something else"));
    server.dispatch(with_document(1, &signed(&file, &[], json!({"sha256": wanted})))).await;
    let ended = server.until_ended(1).await;
    assert_eq!((ended.outcome.as_str(), ended.started_at_ms), ("skipped", None));
    let path = file.display();
    assert_eq!(ended.reason, format!("signature: {path} has sha256 {found}, and the job says {wanted}"));
    let document = signed(&file, &[], json!({"sha256": found}));
    for (run, mode) in [(2, 0o644), (3, 0o711)] {
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        server.dispatch(with_document(run, &document)).await;
        let ended = server.until_ended(run).await;
        assert_eq!((ended.outcome.as_str(), ended.exit_code), ("failed", Some(126)), "{mode:o}: {}", ended.reason);
        assert!(ended.reason.contains("chmod +x"), "{}", ended.reason);
        if belfry_exec::current_user().uid != 0 {
            // Its own file it may read.
            break;
        }
    }
    fs::remove_file(&file).unwrap();
    server.dispatch(with_document(4, &document)).await;
    let ended = server.until_ended(4).await;
    assert_eq!((ended.outcome.as_str(), ended.exit_code), ("failed", Some(127)), "{}", ended.reason);
}

/// How many starts; 10,000 of them: `cargo xtask bench signature`.
fn starts() -> u32 {
    std::env::var("BELFRY_STARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(300)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_unsigned_runs_while_the_file_is_renamed_and_overwritten_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let (file, next, mark) = (folder.path().join("signed"), folder.path().join("next"), folder.path().join("mark"));
    // Of one length, so that a half-written file is a mixture of both.
    let body = |word: &str| format!("#!/bin/sh\n{}\necho {word}\n", format!(": {word}\n").repeat(2000));
    let good = body("good");
    let evil = body("evil").replace("echo evil", &format!("echo evil; : > {}", mark.display()));
    write(&file, good.as_bytes());
    let document = signed(&file, &[], json!({"sha256": sha256(good.as_bytes())}));
    let over = Arc::new(AtomicBool::new(false));
    let attacker = std::thread::spawn({
        let (over, file, good, evil) = (Arc::clone(&over), file.clone(), good.clone(), evil.clone());
        move || {
            let mut turns = 0_u32;
            while !over.load(Ordering::Relaxed) {
                write(&next, evil.as_bytes());
                fs::rename(&next, &file).unwrap();
                write(&next, good.as_bytes());
                fs::rename(&next, &file).unwrap();
                for text in [&evil, &good] {
                    let mut open = fs::OpenOptions::new().write(true).open(&file).unwrap();
                    open.write_all(text.as_bytes()).unwrap();
                    open.set_len(text.len() as u64).unwrap();
                }
                turns += 1;
                // A moment in which it is what it should be.
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
            turns
        }
    });
    let (mut ran, mut skipped) = (0, 0);
    for run in 1..=starts() {
        server.dispatch(with_document(run, &document)).await;
        let (chunks, ended) = server.result(run).await;
        match ended.outcome.as_str() {
            "succeeded" => {
                assert_eq!(stdout(&chunks), "good\n");
                ran += 1;
            }
            "skipped" => {
                assert!(ended.reason.starts_with("signature: "), "{}", ended.reason);
                skipped += 1;
            }
            other => panic!("{other}: {}", ended.reason),
        }
    }
    over.store(true, Ordering::Relaxed);
    let turns = attacker.join().unwrap();
    println!(
        "{}",
        json!({"starts": starts(), "ran": ran, "skipped": skipped, "turns": turns, "unsigned": u8::from(mark.exists())})
    );
    assert!(!mark.exists(), "an unsigned byte was executed");
    assert!(ran > 0 && skipped > 0, "else it shows nothing: {ran} ran, {skipped} skipped, {turns} turns");
}
