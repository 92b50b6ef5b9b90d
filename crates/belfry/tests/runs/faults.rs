//! Faults around a run: a process that is killed, and a disk without room.

use std::path::{Path, PathBuf};

use belfry_testkit::{Belfry, Layout, Witness, until, until_within};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::{setup, start};

pub async fn a_run_that_is_cut_short_is_lost(layout: Layout) {
    let mut belfry = start(layout).await;
    let witness = Witness::new();
    belfry.client().add("cut", &witness.command("cut", "setsid sleep 300 & sleep 300"), json!({})).await;
    let run = belfry.client().run_now("cut").await;
    belfry.client().until_state(&run.id, "running").await;
    until("it has borne witness", async || (witness.lines("cut").len() == 1).then_some(())).await;
    belfry.kill9();
    until("nothing of it is left", async || belfry.processes().is_empty().then_some(())).await;
    belfry.restart().await;
    let lost = belfry.client().until_state(&run.id, "lost").await;
    assert!(lost.why().contains("ended while it had the run"), "{}", lost.why());
    assert_eq!(witness.lines("cut").len(), 1);
}

pub async fn a_server_that_is_killed_does_not_end_what_runs() {
    let mut belfry = start(Layout::TwoProcesses).await;
    let witness = Witness::new();
    let gate = witness.file("gate");
    let work = format!("until [ -e {} ]; do sleep 0.05; done; echo through", gate.display());
    belfry.client().add("steady", &witness.command("steady", &work), json!({})).await;
    let run = belfry.client().run_now("steady").await;
    belfry.client().until_state(&run.id, "running").await;
    belfry.main.take().expect("it runs").kill9();
    std::fs::write(&gate, "").expect("a folder of our own");
    until("the run came to its end without a server", async || (witness.lines("steady").len() == 2).then_some(()))
        .await;
    belfry.restart().await;
    belfry.client().until_state(&run.id, "succeeded").await;
    assert_eq!(belfry.client().output_text(&run.id).await, "through\n");
}

pub async fn an_agent_that_is_killed_loses_its_runs_and_comes_back() {
    let mut belfry = start(Layout::TwoProcesses).await;
    belfry.client().add("cut", "sleep 300", json!({})).await;
    belfry.client().add("next", "true", json!({})).await;
    let run = belfry.client().run_now("cut").await;
    belfry.client().until_state(&run.id, "running").await;
    belfry.agent.take().expect("it runs").kill9();
    belfry.restart().await;
    belfry.client().until_state(&run.id, "lost").await;
    assert_eq!(belfry.client().run_to_end("next").await.state, "succeeded");
}

/// A small file system in memory that goes with its value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> nix::Result<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), Some("size=24m,mode=0755"))?;
        Ok(Self(at.to_owned()))
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut piece = 1 << 20;
        let mut ballast = std::fs::File::create(self.0.join("ballast")).expect("a file");
        while piece > 0 {
            if std::io::Write::write_all(&mut ballast, &vec![1; piece]).is_err() {
                piece /= 2;
            }
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.join("ballast")).expect("it was there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _busy = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

pub async fn a_full_disk_is_said_and_survived(layout: Layout) {
    let place = tempfile::tempdir().expect("a temporary folder");
    // Dropped after Belfry, which is declared later.
    let Ok(disk) = SmallDisk::mount(&place.path().join("disk")) else {
        eprintln!("skipped: only root may mount a small disk");
        return;
    };
    let mut setup = setup(layout);
    setup.data = Some(disk.0.join("data"));
    let mut belfry = setup.start().await;
    let witness = Witness::new();
    belfry
        .client()
        .add(
            "tick",
            &witness.command("tick", "head -c 20000 /dev/urandom | base64"),
            json!({"schedule": "* * * * * *"}),
        )
        .await;
    until("it fires", async || (!witness.starts("tick").is_empty()).then_some(())).await;
    disk.fill();
    let refusal = until("saving a job is refused", async || {
        let name = format!("j{}", belfry_testkit::now().as_millisecond());
        let document = json!({"name": name, "description": "x".repeat(4000), "action": {"shell": {"command": "true"}}});
        let answer = belfry.client().call(reqwest::Method::POST, "/jobs", Some(document)).await;
        answer.status.is_server_error().then_some(answer)
    })
    .await;
    let message = refusal.body["error"]["message"].as_str().unwrap_or_default().to_lowercase();
    assert!(message.contains("full") || message.contains("no space") || message.contains("room"), "{refusal:?}");
    until("readiness says that something is missing", async || (!belfry.client().is_ready().await).then_some(())).await;
    disk.make_room();
    until_it_works(&belfry, &witness).await;
    // Nothing is torn: it opens again and goes on.
    belfry.kill9();
    belfry.restart().await;
    until_it_works(&belfry, &witness).await;
    let runs: Vec<String> = witness.starts("tick").into_iter().map(|line| line.run).collect();
    let distinct: std::collections::HashSet<&String> = runs.iter().collect();
    assert_eq!(distinct.len(), runs.len(), "no run started twice");
}

async fn until_it_works(belfry: &Belfry, witness: &Witness) {
    until("it is ready again", async || belfry.client().is_ready().await.then_some(())).await;
    let before = witness.starts("tick").len();
    let fired = until_within(std::time::Duration::from_secs(60), async || {
        (witness.starts("tick").len() > before).then_some(())
    })
    .await;
    assert!(fired.is_some(), "it fires again");
    let last = witness.starts("tick").pop().expect("there is one").run;
    belfry.client().until_state(&last, "succeeded").await;
}
