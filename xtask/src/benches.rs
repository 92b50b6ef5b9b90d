//! Every bench, what it has to show, and the aims: one entry each.

pub struct Bench {
    pub name: &'static str,
    pub by: By,
    pub args: &'static [&'static str],
    pub figures: &'static [Figure],
    /// It takes too long to be run with the others.
    pub only_when_named: bool,
}

/// What measures. It is built and run in release mode, with the built binary's path in `BELFRY_BIN`.
pub enum By {
    Example(&'static str),
    /// A script of `console/`, with the path of the example that fills a store in `BELFRY_FILL`. The binary has the console in it.
    Script {
        script: &'static str,
        fills: &'static str,
    },
    /// A test that prints its figures, built as tests are, with an environment in which it does more than CI has time for.
    Test {
        target: &'static str,
        env: (&'static str, &'static str),
    },
}

/// One line of the table, and where its numbers stand in what the bench printed. Of several numbers the worst counts.
pub struct Figure {
    pub label: &'static str,
    /// The way to the object that has the numbers, with `/` between the parts that `Json::at` knows.
    pub under: &'static str,
    pub value: &'static str,
    /// Empty: none.
    pub baseline: &'static str,
    pub ratio: &'static str,
    pub unit: &'static str,
    pub aim: Aim,
    pub of: Of,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Aim {
    AtLeast(f64),
    AtMost(f64),
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    Value,
    Ratio,
}

use Aim::{AtLeast, AtMost};
use By::Example;

type Names = [&'static str; 3];

const fn ratio(
    label: &'static str,
    under: &'static str,
    [value, baseline, ratio]: Names,
    unit: &'static str,
    aim: Aim,
) -> Figure {
    Figure { label, under, value, baseline, ratio, unit, aim, of: Of::Ratio }
}

/// The aim is for the value; the ratio stands beside it.
const fn beside(
    label: &'static str,
    under: &'static str,
    [value, baseline, ratio]: Names,
    unit: &'static str,
    aim: Aim,
) -> Figure {
    Figure { label, under, value, baseline, ratio, unit, aim, of: Of::Value }
}

const fn value(label: &'static str, under: &'static str, value: &'static str, unit: &'static str, aim: Aim) -> Figure {
    beside(label, under, [value, "", ""], unit, aim)
}

/// Runs a second, and how many that are beside plain ones of the same round.
const fn over_plain(label: &'static str, under: &'static str, aim: Aim) -> Figure {
    ratio(label, under, ["runs_per_s", "", "ratio"], "/s", aim)
}

const NEXT: Names = ["next_per_second", "croner_per_second", "ratio"];
const STARTS: Names = ["zygote_per_s", "std_per_s", "ratio"];
const FILTERS: &str = "pages_ms/job|state|four states|node|node+state|namespace|job+state|job of a fifth of all+state|job+node|time range";

pub const BENCHES: &[Bench] = &[
    Bench {
        name: "next",
        by: Example("next_bench"),
        args: &[],
        figures: &[
            ratio("next, dense ÷ croner", "rows/name=dense", NEXT, "/s", AtLeast(1.0)),
            ratio("next, daily ÷ croner", "rows/name=fixed", NEXT, "/s", AtLeast(1.0)),
            ratio("next, workdays ÷ croner", "rows/name=weekday", NEXT, "/s", AtLeast(1.0)),
            ratio("next, Feb 29 ÷ croner", "rows/name=leap_day", NEXT, "/s", AtLeast(1.0)),
            value("a schedule in memory", "", "bytes_per_schedule", "bytes", Aim::None),
            value("refusing an impossible one", "", "refuse_impossible_microseconds", "us", Aim::None),
        ],
        only_when_named: false,
    },
    Bench {
        name: "spawn",
        by: Example("spawn_bench"),
        args: &[],
        // A part of a run's way: the whole has to reach 0.7, so a part must.
        figures: &[
            ratio("starts, one by one ÷ posix_spawn", "small_agent/one_by_one", STARTS, "/s", AtLeast(0.7)),
            ratio("starts, 8 at once ÷ posix_spawn", "small_agent/at_once_8", STARTS, "/s", AtLeast(0.7)),
            ratio("one by one, agent of 1 GiB", "agent_1GiB/one_by_one", STARTS, "/s", AtLeast(0.7)),
            ratio("8 at once, agent of 1 GiB", "agent_1GiB/at_once_8", STARTS, "/s", AtLeast(0.7)),
            ratio(
                "as another user with limits ÷ without",
                "small_agent/as_user_with_limits",
                STARTS,
                "/s",
                AtLeast(0.9),
            ),
            ratio("the same, agent of 1 GiB", "agent_1GiB/as_user_with_limits", STARTS, "/s", AtLeast(0.9)),
            beside("behind a shim, beside without", "small_agent/behind_shim", STARTS, "/s", AtLeast(300.0)),
        ],
        only_when_named: false,
    },
    // Trees that fork, call setsid and fork twice, one after the other and all to be ended with a grace that they ignore.
    Bench {
        name: "kills",
        by: Example("kill_soak"),
        args: &[],
        figures: &[
            value("trees ended", "", "trees", "", AtLeast(1000.0)),
            value("processes that survived", "", "survivors", "", AtMost(0.0)),
            value("end of a tree beyond its grace, p99", "", "beyond_grace_p99_ms", "ms", AtMost(1000.0)),
        ],
        only_when_named: true,
    },
    // Starts of a signed file while it is renamed and overwritten.
    Bench {
        name: "signature",
        by: By::Test { target: "it", env: ("BELFRY_STARTS", "10000") },
        args: &[
            "--exact",
            "signature::nothing_unsigned_runs_while_the_file_is_renamed_and_overwritten_in_place",
            "--nocapture",
        ],
        figures: &[
            value("starts of a signed file that is replaced", "", "starts", "", AtLeast(10_000.0)),
            value("that executed an unsigned byte", "", "unsigned", "", AtMost(0.0)),
            value("that ran", "", "ran", "", AtLeast(1.0)),
            value("that were refused", "", "skipped", "", AtLeast(1.0)),
        ],
        only_when_named: true,
    },
    // Prints a table of its own, with its baseline and its syncs.
    Bench { name: "commits", by: Example("commit_rate"), args: &[], figures: &[], only_when_named: false },
    Bench {
        name: "pages",
        by: Example("page_bench"),
        args: &[],
        figures: &[
            value("a page of runs, p99", "pages_ms/plain", "p99", "ms", AtMost(5.0)),
            value("the slowest page with filters, p99", FILTERS, "p99", "ms", AtMost(50.0)),
            value("runs recorded", "", "record_rows_per_s", "/s", Aim::None),
            value("a run in the store", "", "bytes_per_run", "bytes", Aim::None),
            value("100,000 jobs read at a start", "cold_start", "load_raw_ms", "ms", Aim::None),
        ],
        only_when_named: false,
    },
    Bench {
        name: "path",
        by: Example("path_bench"),
        args: &["lag", "runs", "kinds", "herd", "saves", "noop", "jobs"],
        figures: &[
            ratio(
                "start lag, p50 ÷ timer and spawn",
                "row=lag",
                ["p50_ms", "bare_p50_ms", "p50_ratio"],
                "ms",
                Aim::None,
            ),
            ratio(
                "start lag, p99 ÷ timer and spawn",
                "row=lag",
                ["p99_ms", "bare_p99_ms", "p99_ratio"],
                "ms",
                Aim::None,
            ),
            ratio(
                "runs of /bin/true ÷ spawn loop",
                "row=runs",
                ["runs_per_s", "raw_runs_per_s", "runs_ratio"],
                "/s",
                AtLeast(0.7),
            ),
            value("runs that did not succeed", "row=runs", "not_succeeded", "", AtMost(0.0)),
            value("syncs a run", "row=runs", "syncs_per_run", "", Aim::None),
            value("rows a run", "row=runs", "rows_per_run", "", Aim::None),
            over_plain("runs as another user with rlimits ÷ plain", "row=kinds/as_user_with_limits", AtLeast(0.9)),
            over_plain("the same, agent of 1 GiB", "row=kinds/agent_1GiB", AtLeast(0.9)),
            over_plain("runs with limits of the tree too ÷ plain", "row=kinds/as_user_with_all_limits", Aim::None),
            value("runs behind a shim", "row=kinds/behind_shim", "runs_per_s", "/s", AtLeast(300.0)),
            value("of all these, runs that did not succeed", "row=kinds", "not_succeeded", "", AtMost(0.0)),
            ratio(
                "10,000 due at once, last start ÷ spawn loop",
                "row=herd",
                ["last_start_s", "raw_last_start_s", "start_ratio"],
                "s",
                AtMost(1.4),
            ),
            value("of these, runs that did not succeed", "row=herd", "not_succeeded", "", AtMost(0.0)),
            value("what a run writes is saved, p99", "row=saves", "p99_ms", "ms", AtMost(500.0)),
            value("lines overwritten before they were saved", "row=saves", "overwritten", "", AtMost(0.0)),
            beside(
                "no-op fires ÷ batched commits",
                "row=noop",
                ["fires_per_s", "raw_keys_per_s", "ratio"],
                "/s",
                AtLeast(5000.0),
            ),
            value("commits a fire", "row=noop", "claim_commits_per_fire", "", Aim::None),
            value("syncs a fire", "row=noop", "syncs_per_fire", "", Aim::None),
            value("rows a fire", "row=noop", "rows_per_fire", "", Aim::None),
            value("memory a job, 100,000 jobs", "row=jobs", "bytes_per_job", "bytes", AtMost(1500.0)),
            value("cold start to first fire", "row=jobs", "first_fire_s", "s", AtMost(2.0)),
            value("idle CPU of one core", "row=jobs", "idle_cpu_percent", "%", AtMost(0.2)),
        ],
        only_when_named: false,
    },
    Bench {
        name: "million",
        by: Example("path_bench"),
        args: &["million"],
        figures: &[
            value("memory a job, 1,000,000 jobs", "row=million", "bytes_per_job", "bytes", AtMost(1500.0)),
            value("cold start to first fire", "row=million", "first_fire_s", "s", Aim::None),
            value("idle CPU of one core", "row=million", "idle_cpu_percent", "%", Aim::None),
        ],
        only_when_named: true,
    },
    Bench {
        name: "cluster",
        by: Example("path_bench"),
        args: &["cluster", "etcd", "postgres", "mariadb", "zookeeper"],
        figures: &[],
        only_when_named: false,
    },
    // The wrapper for system cron, on each backend.
    Bench { name: "wrap", by: Example("wrap_bench"), args: &[], figures: &[], only_when_named: false },
    // What the tests of the wrapper and of retries show, in the numbers that were promised: they say each figure with its aim. One test after
    // the other, for each has a backend of its own.
    Bench {
        name: "wrap-instances",
        by: By::Test { target: "dcron", env: ("BELFRY_INSTANCES", "200") },
        args: &["each_instance_runs_once_on_", "--test-threads=1", "--nocapture"],
        figures: &[],
        only_when_named: true,
    },
    Bench {
        name: "wrap-faults",
        by: By::Test { target: "dcron_faults", env: ("BELFRY_INJECTIONS", "25") },
        args: &["_on_", "--test-threads=1", "--nocapture"],
        figures: &[],
        only_when_named: true,
    },
    Bench {
        name: "wrap-owners",
        by: By::Test { target: "dcron_cron", env: ("BELFRY_OWNERS", "20") },
        args: &["a_long_lived_process_outlives_its_hosts", "--nocapture"],
        figures: &[],
        only_when_named: true,
    },
    Bench {
        name: "retries",
        by: By::Test { target: "retry", env: ("BELFRY_ROUNDS", "30") },
        args: &["what_a_killed_node_had", "a_retry_waits_through", "--test-threads=1", "--nocapture"],
        figures: &[],
        only_when_named: true,
    },
    // The pages of the console in a browser, with 10,000 jobs and 1,000,000 runs.
    Bench {
        name: "console",
        by: By::Script { script: "tests/bench.mjs", fills: "console_data" },
        args: &[],
        figures: &[],
        only_when_named: true,
    },
    Bench {
        name: "quota",
        by: Example("path_bench"),
        args: &["cluster", "quota"],
        figures: &[],
        only_when_named: true,
    },
];
