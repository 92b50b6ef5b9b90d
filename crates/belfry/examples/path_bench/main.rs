//! The whole path measured in one process with the shipped durability: store, coordinator, control, and either the real agent or one
//! that answers at once. Each row has its baseline in the same run and prints one JSON line.
//!
//! `BELFRY_BIN` names the built binary, whose hidden mode is the zygote. Rows are chosen by name; without names all but `million` run.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts the baseline itself")]

mod baseline;
mod bed;
mod cluster;
mod rows;

/// As in the shipped binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    // As in the shipped binary.
    nix::sys::prctl::set_thp_disable(true).expect("Linux has it since 3.15");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if let [first, folder, each_second] = &wanted[..]
        && first == "cold-start"
    {
        let each_second = each_second.parse().expect("a job id");
        println!("{}", runtime.block_on(rows::cold_start(folder, each_second)));
        return;
    }
    if let [first, backends @ ..] = &wanted[..]
        && first == "cluster"
    {
        return runtime.block_on(cluster::run(backends));
    }
    type Row = (&'static str, fn(&tokio::runtime::Runtime) -> serde_json::Value);
    let all: [Row; 8] = [
        ("lag", |rt| rt.block_on(rows::lag())),
        ("runs", |rt| rt.block_on(rows::runs(2_000, 5))),
        ("kinds", |rt| rt.block_on(rows::kinds(2_000, 3))),
        ("herd", |rt| rt.block_on(rows::runs(10_000, 5))),
        ("saves", |rt| rt.block_on(rows::saves())),
        ("noop", |rt| rt.block_on(rows::noop())),
        ("jobs", |rt| rt.block_on(rows::many_jobs(100_000))),
        ("million", |rt| rt.block_on(rows::many_jobs(1_000_000))),
    ];
    for (name, row) in all {
        if wanted.iter().any(|w| w == name) || (wanted.is_empty() && name != "million") {
            let mut line = row(&runtime);
            line["row"] = name.into();
            println!("{line}");
        }
    }
}
