//! `bench`: runs what measures, and holds the figures against their aims. The benches stand in `benches.rs`; each does its own
//! rounds and medians, here its JSON is read and laid out.
//!
//! A bench prints lines. A line that is an object with `figure` speaks for itself:
//! `{"figure": "runs per second", "value": 1650, "baseline": 2200, "at_least": 0.7, "of": "ratio"}`; `unit`, `baseline`,
//! `ratio`, `at_least` and `at_most` may be absent, `of` says whether the aim is for the `value` (default) or the `ratio`.
//! From other objects the figures of its entry are read. What is no JSON is shown as it is.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::benches::{Aim, BENCHES, Bench, By, Figure, Of};
use crate::console::{self, Console};
use crate::json::Json;
use crate::table::Table;
use crate::workspace::{Profile, built_for, cargo, locked, root};

pub fn bench(only: Option<&str>) -> anyhow::Result<bool> {
    let is_chosen = |bench: &&Bench| only.map_or(!bench.only_when_named, |name| name == bench.name);
    let chosen: Vec<&Bench> = BENCHES.iter().filter(is_chosen).collect();
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
    let Bench { name, by, args, figures, only_when_named: _ } = bench;
    eprintln!("xtask: bench {name}: building");
    let mut measure = match by {
        By::Example(example) => {
            let folder = build(example)?;
            let mut measure = Command::new(folder.join("examples").join(example));
            measure.current_dir(root()).env("BELFRY_BIN", folder.join("belfry"));
            measure
        }
        By::Script { script, fills } => {
            // First, so that it is in the binary.
            if console::build()? == Console::NotThere {
                bail!("there is no console to measure");
            }
            let folder = build(fills)?;
            let mut measure = Command::new("node");
            measure
                .arg(script)
                .current_dir(root().join("console"))
                .env("BELFRY_BIN", folder.join("belfry"))
                .env("BELFRY_FILL", folder.join("examples").join(fills));
            measure
        }
        By::Test { target, env: (name, value) } => {
            let mut measure = cargo(&["test", "--quiet", "--workspace", "--test", target]);
            measure.args(locked()).arg("--").env(name, value);
            measure
        }
    };
    eprintln!("xtask: bench {name}: measuring");
    measure.args(*args).stdin(Stdio::null());
    let output = measure.stderr(Stdio::inherit()).output()?;
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

/// With all programs: some benches start one.
fn build(example: &str) -> anyhow::Result<PathBuf> {
    built_for(Profile::Release, &["--bins", "--example", example])
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
        let worst = |name: &str| {
            let path: Vec<&str> = figure.under.split('/').chain([name]).filter(|part| !part.is_empty()).collect();
            let numbers = said.at(&path).into_iter().filter_map(Json::number).filter(|_| !name.is_empty());
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
        let said = r#"{"pages_ms":{"plain":{"p99":1},"job":{"p99":2},"state":{"p99":60}}}"#;
        assert_eq!(
            read("pages", said),
            [("a page of runs, p99", "pass"), ("the slowest page with filters, p99", "MISS")]
        );
    }

    #[test]
    fn a_figure_is_read_from_its_own_line_only() {
        let said = r#"{"row":"herd","runs_per_s":900,"raw_runs_per_s":1000,"runs_ratio":0.9,"last_start_s":6,"raw_last_start_s":5,"start_ratio":1.2}"#;
        assert_eq!(read("path", said), [("10,000 due at once, last start ÷ spawn loop", "pass")]);
    }

    #[test]
    fn one_run_that_did_not_succeed_is_a_miss() {
        for row in ["runs", "kinds", "herd"] {
            let of = |failed: u32| read("path", &format!(r#"{{"row":"{row}","not_succeeded":{failed}}}"#));
            let verdicts = |failed| of(failed).into_iter().map(|(_, verdict)| verdict).collect::<Vec<_>>();
            assert_eq!((verdicts(0), verdicts(1)), (vec!["pass"], vec!["MISS"]), "{row}");
        }
    }

    #[test]
    fn the_tests_that_measure_are_there_and_read_how_much_they_shall_do() {
        let mut seen = 0;
        for Bench { name, by, args, .. } in BENCHES {
            let By::Test { target, env: (variable, _) } = by else { continue };
            let crates = std::fs::read_dir(root().join("crates")).unwrap().flatten();
            let text: String = crates.map(|of| text_below(&of.path().join("tests"), target)).collect();
            let tests = args.iter().filter(|arg| !arg.starts_with('-')).filter_map(|arg| arg.rsplit("::").next());
            for wanted in tests.chain([*variable]) {
                assert!(text.contains(wanted), "{name}: {wanted}");
                seen += 1;
            }
        }
        assert!(seen > 2);
    }

    /// Of the test and what belongs to it.
    fn text_below(tests: &std::path::Path, target: &str) -> String {
        let below = std::fs::read_dir(tests.join(target)).into_iter().flatten().flatten().map(|entry| entry.path());
        below
            .chain([tests.join(format!("{target}.rs"))])
            .filter_map(|file| std::fs::read_to_string(file).ok())
            .collect()
    }

    fn read(bench: &str, said: &str) -> Vec<(&'static str, &'static str)> {
        let said = Json::parse(said).unwrap();
        let bench = BENCHES.iter().find(|entry| entry.name == bench).unwrap();
        let lines = bench.figures.iter().filter_map(|figure| Some((figure.label, Line::read(figure, &said)?.result())));
        lines.collect()
    }
}
