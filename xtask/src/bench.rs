//! `bench`: runs what measures, and holds the figures against their aims. Each bench is one entry of [`BENCHES`] and does its
//! own rounds and medians; here its JSON is read and laid out.
//!
//! A bench prints lines. A line that is an object with `figure` speaks for itself:
//! `{"figure": "runs per second", "value": 1650, "baseline": 2200, "at_least": 0.7, "of": "ratio"}`; `unit`, `baseline`,
//! `ratio`, `at_least` and `at_most` may be absent, `of` says whether the aim is for the `value` (default) or the `ratio`.
//! From other objects the entry's own figures are read. What is no JSON is shown as it is.

use std::process::Stdio;

use anyhow::{Context, bail};

use crate::json::Json;
use crate::table::Table;
use crate::workspace::cargo;

struct Bench {
    name: &'static str,
    package: &'static str,
    /// Of the package; it is built and run in release mode.
    example: &'static str,
    args: &'static [&'static str],
    figures: &'static [Figure],
}

/// One line of the table, and where its numbers stand in what the bench printed. Of several numbers the worst counts.
struct Figure {
    label: &'static str,
    value: &'static [&'static str],
    unit: &'static str,
    baseline: &'static [&'static str],
    ratio: &'static [&'static str],
    aim: Aim,
    of: Of,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Aim {
    AtLeast(f64),
    AtMost(f64),
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    Value,
    Ratio,
}

const fn next(
    label: &'static str,
    value: &'static [&'static str],
    baseline: &'static [&'static str],
    ratio: &'static [&'static str],
) -> Figure {
    Figure { label, value, unit: "/s", baseline, ratio, aim: Aim::AtLeast(1.0), of: Of::Ratio }
}

/// A part of a run's way: the whole has to reach 0.7, so a part must.
const fn starts(
    label: &'static str,
    value: &'static [&'static str],
    baseline: &'static [&'static str],
    ratio: &'static [&'static str],
) -> Figure {
    Figure { label, value, unit: "/s", baseline, ratio, aim: Aim::AtLeast(0.7), of: Of::Ratio }
}

const fn alone(label: &'static str, value: &'static [&'static str], unit: &'static str, aim: Aim) -> Figure {
    Figure { label, value, unit, baseline: &[], ratio: &[], aim, of: Of::Value }
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "next",
        package: "belfry-core",
        example: "next_bench",
        args: &[],
        figures: &[
            next(
                "next, dense ÷ croner",
                &["rows", "name=dense", "next_per_second"],
                &["rows", "name=dense", "croner_per_second"],
                &["rows", "name=dense", "ratio"],
            ),
            next(
                "next, daily ÷ croner",
                &["rows", "name=fixed", "next_per_second"],
                &["rows", "name=fixed", "croner_per_second"],
                &["rows", "name=fixed", "ratio"],
            ),
            next(
                "next, workdays ÷ croner",
                &["rows", "name=weekday", "next_per_second"],
                &["rows", "name=weekday", "croner_per_second"],
                &["rows", "name=weekday", "ratio"],
            ),
            next(
                "next, Feb 29 ÷ croner",
                &["rows", "name=leap_day", "next_per_second"],
                &["rows", "name=leap_day", "croner_per_second"],
                &["rows", "name=leap_day", "ratio"],
            ),
            alone("a schedule in memory", &["bytes_per_schedule"], "bytes", Aim::None),
            alone("refusing an impossible one", &["refuse_impossible_microseconds"], "us", Aim::None),
        ],
    },
    Bench {
        name: "spawn",
        package: "belfry-exec",
        example: "spawn_bench",
        args: &[],
        figures: &[
            starts(
                "starts, one by one ÷ posix_spawn",
                &["small_agent", "one_by_one", "zygote_per_s"],
                &["small_agent", "one_by_one", "std_per_s"],
                &["small_agent", "one_by_one", "ratio"],
            ),
            starts(
                "starts, 8 at once ÷ posix_spawn",
                &["small_agent", "at_once_8", "zygote_per_s"],
                &["small_agent", "at_once_8", "std_per_s"],
                &["small_agent", "at_once_8", "ratio"],
            ),
            starts(
                "the same, agent of 1 GiB",
                &["agent_1GiB", "one_by_one", "zygote_per_s"],
                &["agent_1GiB", "one_by_one", "std_per_s"],
                &["agent_1GiB", "one_by_one", "ratio"],
            ),
            starts(
                "8 at once, agent of 1 GiB",
                &["agent_1GiB", "at_once_8", "zygote_per_s"],
                &["agent_1GiB", "at_once_8", "std_per_s"],
                &["agent_1GiB", "at_once_8", "ratio"],
            ),
        ],
    },
    // Prints a table of its own, with its baseline and its syncs.
    Bench { name: "commits", package: "belfry-coord", example: "commit_rate", args: &[], figures: &[] },
    Bench {
        name: "pages",
        package: "belfry-store",
        example: "page_bench",
        args: &[],
        figures: &[
            alone("a page of runs, p99", &["pages_ms", "plain", "p99"], "ms", Aim::AtMost(5.0)),
            alone(
                "a page with filters, p99, the slowest",
                &[
                    "pages_ms",
                    "job|state|four states|node|node+state|namespace|job+state|job of a fifth of all+state|job+node|time range",
                    "p99",
                ],
                "ms",
                Aim::AtMost(50.0),
            ),
            alone("runs recorded", &["record_rows_per_s"], "/s", Aim::None),
            alone("a run in the store", &["bytes_per_run"], "bytes", Aim::None),
            alone("100,000 jobs read at a start", &["cold_start", "load_raw_ms"], "ms", Aim::None),
        ],
    },
];

pub fn bench(only: Option<&str>) -> anyhow::Result<bool> {
    let chosen: Vec<&Bench> = BENCHES.iter().filter(|bench| only.is_none_or(|name| name == bench.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
        bail!("there is no bench `{}`; there are {}", only.unwrap_or_default(), names.join(", "));
    }
    let mut table = Table::new(&["bench", "figure", "value", "baseline", "ratio", "aim", "result"]);
    let mut all_ran = true;
    for bench in chosen {
        match run(bench) {
            Ok(lines) => lines.into_iter().for_each(|line| table.row(&line.cells(bench.name))),
            Err(cause) => {
                eprintln!("xtask: bench {}: {cause:#}", bench.name);
                all_ran = false;
            }
        }
    }
    print!("\n{table}");
    // A miss is for people to judge: this machine may be busy. A bench that did not run is a failure.
    Ok(all_ran)
}

fn run(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let Bench { name, package, example, args, figures } = bench;
    eprintln!("xtask: bench {name}: building");
    // Programs of the package too: one bench starts one.
    let built =
        cargo(&["build", "--quiet", "--release", "--package", package, "--bins", "--example", example]).status()?;
    if !built.success() {
        bail!("it could not be built");
    }
    eprintln!("xtask: bench {name}: measuring");
    let mut measure = cargo(&["run", "--quiet", "--release", "--package", package, "--example", example, "--"]);
    let output = measure.args(*args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("it ended with {}", output.status);
    }
    let mut lines = Vec::new();
    for text in String::from_utf8_lossy(&output.stdout).lines() {
        match Json::parse(text) {
            Ok(said) if said.get("figure").is_some() => lines.push(Line::said(&said)?),
            Ok(said) => lines.extend(figures.iter().filter_map(|figure| Line::read(figure, &said))),
            Err(_) => println!("  {text}"),
        }
    }
    if lines.is_empty() && !figures.is_empty() {
        bail!("it printed none of its figures; has its JSON changed?");
    }
    Ok(lines)
}

struct Line {
    label: String,
    value: f64,
    unit: String,
    baseline: Option<f64>,
    ratio: Option<f64>,
    aim: Aim,
    of: Of,
}

impl Line {
    fn read(figure: &Figure, said: &Json) -> Option<Line> {
        let worst = |path: &[&str]| {
            let numbers = said.at(path).into_iter().filter_map(Json::number);
            let numbers = numbers.filter(|_| !path.is_empty());
            match figure.aim {
                Aim::AtLeast(_) => numbers.reduce(f64::min),
                Aim::AtMost(_) | Aim::None => numbers.reduce(f64::max),
            }
        };
        Some(Line {
            label: figure.label.to_owned(),
            value: worst(figure.value)?,
            unit: figure.unit.to_owned(),
            baseline: worst(figure.baseline),
            ratio: worst(figure.ratio),
            aim: figure.aim,
            of: figure.of,
        })
    }

    /// A line that speaks for itself.
    fn said(said: &Json) -> anyhow::Result<Line> {
        let number = |key: &str| said.get(key).and_then(Json::number);
        let text = |key: &str| said.get(key).and_then(Json::text).unwrap_or_default();
        let label = text("figure").to_owned();
        let value = number("value").with_context(|| format!("figure `{label}` has no value"))?;
        let baseline = number("baseline");
        let aim = match (number("at_least"), number("at_most")) {
            (Some(least), None) => Aim::AtLeast(least),
            (None, Some(most)) => Aim::AtMost(most),
            (None, None) => Aim::None,
            (Some(_), Some(_)) => bail!("figure `{label}` has two aims"),
        };
        let of = match text("of") {
            "" | "value" => Of::Value,
            "ratio" => Of::Ratio,
            other => bail!("figure `{label}`: `{other}` is neither value nor ratio"),
        };
        let ratio = number("ratio").or_else(|| baseline.map(|baseline| value / baseline));
        Ok(Line { label, value, unit: text("unit").to_owned(), baseline, ratio, aim, of })
    }

    fn result(&self) -> &'static str {
        let judged = match self.of {
            Of::Value => Some(self.value),
            Of::Ratio => self.ratio,
        };
        match (self.aim, judged) {
            (Aim::None, _) => "",
            (_, None) => "no figure",
            (Aim::AtLeast(least), Some(number)) if number >= least => "pass",
            (Aim::AtMost(most), Some(number)) if number <= most => "pass",
            (Aim::AtLeast(_) | Aim::AtMost(_), Some(_)) => "MISS",
        }
    }

    fn cells(&self, bench: &str) -> [String; 7] {
        let optional = |value: Option<f64>| value.map_or_else(String::new, number);
        let unit =
            if self.of == Of::Value && !self.unit.is_empty() { format!(" {}", self.unit) } else { String::new() };
        let aim = match self.aim {
            Aim::AtLeast(least) => format!(">= {}{unit}", number(least)),
            Aim::AtMost(most) => format!("<= {}{unit}", number(most)),
            Aim::None => String::new(),
        };
        let value = format!("{} {}", number(self.value), self.unit);
        let (baseline, ratio) = (optional(self.baseline), optional(self.ratio));
        [bench.to_owned(), self.label.clone(), value.trim().to_owned(), baseline, ratio, aim, self.result().to_owned()]
    }
}

/// Three digits that say something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(text: &str) -> [String; 7] {
        Line::said(&Json::parse(text).unwrap()).unwrap().cells("b")
    }

    #[test]
    fn a_line_that_speaks_for_itself_is_judged_by_its_own_aim() {
        let ratio = cells(r#"{"figure":"runs","value":1500,"unit":"/s","baseline":2000,"at_least":0.7,"of":"ratio"}"#);
        assert_eq!(ratio, ["b", "runs", "1500 /s", "2000", "0.75", ">= 0.70", "pass"]);
        let value = cells(r#"{"figure":"cold start","value":2.5,"unit":"s","at_most":2}"#);
        assert_eq!(value, ["b", "cold start", "2.50 s", "", "", "<= 2 s", "MISS"]);
        assert_eq!(cells(r#"{"figure":"rows","value":3}"#)[6], "");
        assert_eq!(cells(r#"{"figure":"x","value":3,"at_least":1,"of":"ratio"}"#)[6], "no figure");
    }

    #[test]
    fn of_several_numbers_the_worst_counts() {
        let said = Json::parse(r#"{"pages_ms":{"plain":{"p99":1},"job":{"p99":2},"state":{"p99":60}}}"#).unwrap();
        let pages = BENCHES.iter().find(|bench| bench.name == "pages").unwrap();
        let lines: Vec<Line> = pages.figures.iter().filter_map(|figure| Line::read(figure, &said)).collect();
        let results: Vec<_> = lines.iter().map(|line| (line.value, line.result())).collect();
        assert_eq!(results, [(1.0, "pass"), (60.0, "MISS")]);
    }
}
