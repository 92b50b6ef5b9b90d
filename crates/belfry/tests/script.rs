//! Stored scripts, through the command line and real processes: versions, what a job executes, and what is refused.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belfry_testkit::{Client, Daemon, until};
use serde_json::{Value, json};

const BELFRY: &str = env!("CARGO_BIN_EXE_belfry");
const STOP_PATIENCE: Duration = Duration::from_secs(40);

struct Up {
    folder: tempfile::TempDir,
    client: Client,
    daemon: Daemon,
}

impl Up {
    async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-script-").tempdir().unwrap();
        let data = folder.path().join("data");
        let args = ["up", "--listen", "127.0.0.1:0"].map(str::to_owned);
        let env = [("BELFRY_DATA".to_owned(), data.display().to_string())];
        let mut daemon = Daemon::start("up", Path::new(BELFRY), &args, &env, &folder.path().join("up.err"));
        let address = until("the address is written", async || {
            assert!(daemon.ended().is_none(), "{}", daemon.stderr());
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).unwrap();
        Self { client: Client::new(address.trim(), token.trim()), folder, daemon }
    }

    fn file(&self, body: &str) -> PathBuf {
        let path = self.folder.path().join("script");
        std::fs::write(&path, body).unwrap();
        path
    }

    /// What the command line says, and whether it is content.
    #[expect(clippy::disallowed_methods, reason = "the program under test is started as a user starts it")]
    fn cli(&self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new(BELFRY);
        let data = self.folder.path().join("data");
        command.args(args).env("BELFRY_DATA", data).env_remove("BELFRY_URL").env_remove("BELFRY_TOKEN");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    }

    fn put(&self, name: &str, body: &str) -> String {
        let (done, said) = self.cli(&["script", "put", name, self.file(body).to_str().unwrap()]);
        assert!(done, "{said}");
        said
    }

    async fn refused(&self, document: Value) -> String {
        let answer = self.client.call(reqwest::Method::POST, "/jobs", Some(document)).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        answer.body["error"]["message"].as_str().unwrap().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_executes_the_newest_version_of_its_script_and_the_record_says_which() {
    let mut up = Up::start().await;
    let client = &up.client;
    let job = |name: &str, script: Value| json!({"name": name, "timezone": "UTC", "action": {"script": script}});
    let missing = up.refused(job("nightly", json!({"name": "backup"}))).await;
    assert!(missing.contains("there is no script `backup` in the namespace `default`"), "{missing}");

    assert!(up.put("backup", "echo \"$0 one\"\n").starts_with("default/backup version 1\n"));
    assert!(up.put("backup", "echo \"$0 one\"\n").starts_with("default/backup version 1\n"), "it is the same");
    client.post("/jobs", job("nightly", json!({"name": "backup"}))).await;
    let run = client.run_to_end("nightly").await;
    assert_eq!(client.output_text(&run.id).await, "backup one\n");
    assert!(up.put("backup", "#!/bin/sh\necho two; exit 7\n").starts_with("default/backup version 2\n"));
    let run = client.run_to_end("nightly").await;
    assert_eq!((client.output_text(&run.id).await.as_str(), run.exit_code), ("two\n", Some(7)));
    let versions = client.get("/scripts/default/backup/versions").await["items"].clone();
    let digest = versions[0]["sha256"].as_str().unwrap();
    assert_eq!((versions[0]["version"].as_u64(), versions.as_array().unwrap().len()), (Some(2), 2));
    let record = client.get(&format!("/runs/{}", run.id)).await;
    assert_eq!(record["script"], format!("backup version 2, sha256 {digest}"));
    assert_eq!(up.cli(&["script", "get", "backup", "--version", "1"]), (true, "echo \"$0 one\"\n".to_owned()));
    let (done, said) = up.cli(&["script", "ls"]);
    assert!(done && said.contains("default/backup") && said.contains(&digest[..12]), "{said}");
    let (done, said) = up.cli(&["run", "show", &run.id]);
    assert!(done && said.contains("backup version 2, sha256"), "{said}");

    let (done, said) = up.cli(&["script", "rm", "backup", "--yes"]);
    assert!(!done && said.contains("it is used by default/nightly; change or remove these first"), "{said}");
    client.delete("/jobs/default/nightly").await;
    let (done, said) = up.cli(&["script", "rm", "backup", "--yes"]);
    assert!(done, "{said}");
    let audit = client.get("/audit?limit=50").await;
    let deeds = audit["items"].as_array().unwrap().iter();
    let deeds: Vec<&str> = deeds.filter_map(|row| row["action"].as_str()?.strip_prefix("script.")).collect();
    assert_eq!(deeds, ["remove", "put", "put"], "{audit}");
    assert!(up.daemon.stop(STOP_PATIENCE).await.success(), "{}", up.daemon.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_in_the_job_itself_runs_everywhere_and_what_cannot_be_is_refused() {
    let mut up = Up::start().await;
    let client = &up.client;
    let body = "echo \"$0 on each\"\n";
    let each = json!({"name": "local", "timezone": "UTC", "run_on": "each", "schedule": "* * * * * *",
        "action": {"script": {"body": body}}});
    client.post("/jobs", each.clone()).await;
    let run =
        until("it has fired", async || client.runs("local").await.into_iter().find(|run| run.state == "succeeded"))
            .await;
    assert_eq!(client.output_text(&run.id).await, "local on each\n");
    assert!(client.get(&format!("/runs/{}", run.id)).await["script"].as_str().unwrap().starts_with("sha256 "));

    up.put("stored", body);
    let mut named = each.clone();
    named["name"] = json!("named");
    named["action"] = json!({"script": {"name": "stored"}});
    let said = up.refused(named).await;
    assert!(said.contains("`run_on: each` goes on without one; write its body into the job"), "{said}");
    let large = "x".repeat(64 * 1024 + 1);
    let said = up.refused(json!({"name": "large", "action": {"script": {"body": large}}})).await;
    assert!(said.contains("at most 65536 bytes are accepted, there are 65537"), "{said}");
    let (done, said) = up.cli(&["script", "put", "large", up.file(&large).to_str().unwrap()]);
    assert!(!done && said.contains("at most 65536 bytes are accepted"), "{said}");
    let said = up.refused(json!({"name": "both", "action": {"script": {"body": "true", "name": "stored"}}})).await;
    assert!(said.contains("it has a name and a body"), "{said}");
    assert!(up.daemon.stop(STOP_PATIENCE).await.success(), "{}", up.daemon.stderr());
}
