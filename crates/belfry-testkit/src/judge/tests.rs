use super::*;

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + (seconds * 1000.0) as i64).unwrap()
}

fn line(mark: Mark, seconds: f64) -> Line {
    Line {
        mark,
        job: "j".to_owned(),
        run: "R".to_owned(),
        attempt: 1,
        planned: at(10.0),
        fence: 1,
        node: "a".to_owned(),
        incarnation: 7,
        at: at(seconds),
    }
}

fn record(state: &str) -> Run {
    let value = serde_json::json!({
        "id": "R", "job_name": "j", "state": state, "trigger": "schedule", "revision": 1, "attempt": 1, "fence": 1,
        "planned": at(10.0), "output_bytes": 0, "output_dropped_bytes": 0, "node_name": "a", "marks": [],
    });
    serde_json::from_value(value).unwrap()
}

/// What is wrong with one fire at second 10.
fn faults(state: Option<&str>, witness: &[Line], kills: &[f64]) -> Vec<Fault> {
    let records: Vec<Run> = state.map(record).into_iter().collect();
    let troubles: Vec<Trouble> = kills.iter().map(|kill| Trouble::at(at(*kill))).collect();
    judge(&case(&records, witness, &troubles), &mut Tally::default())
}

fn case<'a>(records: &'a [Run], witness: &'a [Line], troubles: &'a [Trouble]) -> Case<'a> {
    let due = std::slice::from_ref(const { &DUE });
    Case {
        job: "j",
        due,
        witness,
        records,
        firer: Firer::Server,
        promise: Promise::AtMostOnce,
        overlap_forbidden: false,
        late_after: None,
        troubles,
        marked_lost: &[],
    }
}

const DUE: Timestamp = Timestamp::constant(1_800_000_010, 0);

const S: fn(f64) -> Line = |seconds| line(Mark::Started, seconds);
const F: fn(f64) -> Line = |seconds| line(Mark::Finished, seconds);

#[test]
fn good_ends_are_not_blamed() {
    assert_eq!(faults(Some("succeeded"), &[S(10.0), F(10.1)], &[]), []);
    assert_eq!(faults(Some("skipped"), &[], &[9.5]), []);
    assert_eq!(faults(Some("lost"), &[S(10.0)], &[10.5]), [], "cut in the middle");
    assert_eq!(faults(Some("lost"), &[], &[9.5]), [], "claimed ahead, never started");
    assert_eq!(faults(Some("lost"), &[S(10.05), F(10.06)], &[10.0]), [], "it outlived Belfry by a moment");
}

#[test]
fn lost_needs_a_kill_that_the_run_was_there_for() {
    let blamed = |witness: &[Line], kills: &[f64]| {
        matches!(faults(Some("lost"), witness, kills)[..], [Fault::LostWithoutCause(_)])
    };
    assert!(blamed(&[S(10.0), F(10.1)], &[]));
    assert!(blamed(&[S(10.0), F(10.1)], &[9.0]), "a kill before it is no excuse");
    assert!(blamed(&[S(10.0), F(10.1)], &[9.0, 12.5]), "nor is one long after its end");
    assert!(blamed(&[S(10.0)], &[9.0]));
}

#[test]
fn each_broken_promise_is_seen() {
    assert!(matches!(faults(None, &[], &[])[..], [Fault::Unaccounted(_)]));
    assert!(matches!(faults(Some("running"), &[S(10.0)], &[])[..], [Fault::NotEnded(_)]));
    assert!(matches!(faults(Some("succeeded"), &[S(9.9), F(10.1)], &[])[..], [Fault::StartedEarly(_)]));
    assert!(matches!(faults(Some("succeeded"), &[S(10.0)], &[])[..], [Fault::RecordContradictsWitness(_)]));
    assert!(matches!(faults(Some("skipped"), &[S(10.0)], &[9.5])[..], [Fault::RecordContradictsWitness(_)]));
    assert!(matches!(faults(Some("skipped"), &[], &[])[..], [Fault::SkippedWithoutCause(_)]));
    let twice = faults(Some("succeeded"), &[S(10.0), S(11.0), F(11.1)], &[]);
    assert!(matches!(twice[..], [Fault::StartedTwice(_), Fault::StartedTwice(_)]), "by run and by instant: {twice:?}");
}

fn of_node(name: &str, harm: Harm) -> TroubleOf {
    TroubleOf::Node(name.to_owned(), harm)
}

fn trouble(of: TroubleOf) -> [Trouble; 1] {
    [Trouble { from: at(10.5), to: at(12.0), of }]
}

#[test]
fn only_trouble_of_its_node_may_lose_a_run() {
    let records = [record("lost")];
    let blamed = |of: TroubleOf| {
        judge(&case(&records, &[S(10.0)], &trouble(of)), &mut Tally::default()).iter().any(|f| f.kind() != "fence")
    };
    for harm in [Harm::Killed, Harm::Paused, Harm::CutOff] {
        assert!(!blamed(of_node("a", harm)), "{harm:?}");
        assert!(blamed(of_node("b", harm)), "{harm:?}");
    }
    assert!(blamed(of_node("a", Harm::DiskFull)));
    assert!(blamed(TroubleOf::Servers), "a server that dies takes no run with it");
}

#[test]
fn a_start_after_its_node_was_marked_lost_is_a_zombie() {
    let records = [record("succeeded")];
    let witness = [S(10.6), F(10.7)];
    let mark = |incarnation, seconds| [MarkedLost { node: "a".to_owned(), incarnation, at: at(seconds) }];
    let kinds = |marked_lost: &[MarkedLost]| {
        let case = Case { marked_lost, ..case(&records, &witness, &[]) };
        judge(&case, &mut Tally::default()).iter().map(Fault::kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&mark(7, 10.5)), ["zombie"]);
    assert!(kinds(&mark(7, 10.65)).is_empty(), "it was started before");
    assert!(kinds(&mark(6, 10.5)).is_empty(), "that was its former incarnation");
}

#[test]
fn late_is_what_nothing_excuses() {
    let records = [record("succeeded")];
    let late = |start: f64, troubles: &[Trouble]| {
        let witness = [S(start), F(start + 0.1)];
        let late_after = Some(SignedDuration::from_secs(5));
        let case = Case { late_after, ..case(&records, &witness, troubles) };
        !judge(&case, &mut Tally::default()).is_empty()
    };
    assert!(late(16.0, &[]));
    assert!(!late(16.0, &trouble(TroubleOf::Servers)));
    assert!(late(17.5, &trouble(TroubleOf::Servers)));
}

#[test]
fn a_fence_belongs_to_one_attempt_and_grows_where_runs_wait() {
    let run = |name: &str, planned: f64, start: f64, fence: u64| {
        let own = |line: Line| Line { run: name.to_owned(), planned: at(planned), fence, ..line };
        [own(S(start)), own(F(start + 0.1))]
    };
    let blamed = |witness: &[Line], overlap_forbidden: bool| {
        let case = Case { overlap_forbidden, ..case(&[], witness, &[]) };
        judge(&case, &mut Tally::default()).iter().any(|fault| fault.kind() == "fence")
    };
    let later_first = [run("A", 10.0, 11.0, 8), run("B", 11.0, 11.5, 7)].concat();
    assert!(!blamed(&later_first, false), "nobody waits for the other");
    assert!(blamed(&later_first, true));
    assert!(blamed(&[run("A", 10.0, 10.0, 7), run("B", 11.0, 11.0, 9), run("C", 12.0, 12.0, 7)].concat(), false));
}

#[test]
fn at_least_once_means_done() {
    let records = [record("lost")];
    let troubles = trouble(of_node("a", Harm::Killed));
    let witness = [S(10.0)];
    let case = Case { promise: Promise::AtLeastOnce, ..case(&records, &witness, &troubles) };
    assert!(matches!(judge(&case, &mut Tally::default())[..], [Fault::NotDone(_)]));
}

const HARMS: [Harm; 4] = [Harm::Killed, Harm::Paused, Harm::CutOff, Harm::DiskFull];

/// Of the fire at second 10, after something was done to its node, another node, the servers or the machine from second 9 to second 20.
fn kinds_by_node(
    misfire: MisfirePolicy,
    witness: &[Line],
    records: &[Run],
    of: Option<TroubleOf>,
) -> Vec<&'static str> {
    kinds_by(Firer::Node { name: "a", misfire }, witness, records, of)
}

fn kinds_at_home(
    misfire: MisfirePolicy,
    witness: &[Line],
    records: &[Run],
    of: Option<TroubleOf>,
) -> Vec<&'static str> {
    kinds_by(Firer::Home { misfire }, witness, records, of)
}

fn kinds_by(firer: Firer<'_>, witness: &[Line], records: &[Run], of: Option<TroubleOf>) -> Vec<&'static str> {
    let troubles: Vec<Trouble> = of.into_iter().map(|of| Trouble { from: at(9.0), to: at(20.0), of }).collect();
    let late_after = Some(SignedDuration::from_secs(2));
    let case = Case { firer, late_after, ..case(records, witness, &troubles) };
    judge(&case, &mut Tally::default()).iter().map(Fault::kind).collect()
}

#[test]
fn what_a_node_fires_by_itself_is_held_up_and_passed_over_only_by_what_is_done_to_it() {
    use MisfirePolicy::{Latest, Skip};
    let (late, ran) = ([S(14.0), F(14.1)], [record("succeeded")]);
    let skipped = [record("skipped")];
    for harm in [Harm::Killed, Harm::Paused, Harm::DiskFull] {
        assert!(kinds_by_node(Latest, &late, &ran, Some(of_node("a", harm))).is_empty(), "{harm:?}");
        assert!(kinds_by_node(Skip, &[], &skipped, Some(of_node("a", harm))).is_empty(), "{harm:?}");
    }
    let of_others = HARMS.map(|harm| of_node("b", harm));
    for of in of_others.into_iter().chain([of_node("a", Harm::CutOff), TroubleOf::Servers]) {
        assert_eq!(kinds_by_node(Latest, &late, &ran, Some(of.clone())), ["late"], "{of:?}");
        assert_eq!(kinds_by_node(Skip, &[], &skipped, Some(of.clone())), ["skipped without cause"], "{of:?}");
    }
    assert!(kinds_by_node(Skip, &[], &skipped, Some(TroubleOf::Slowness)).is_empty());
}

#[test]
fn what_a_node_fires_by_itself_is_lost_only_with_its_process() {
    let kinds = |of| kinds_by_node(MisfirePolicy::Latest, &[S(10.0)], &[record("lost")], Some(of));
    assert!(kinds(of_node("a", Harm::Killed)).is_empty());
    let spared = [Harm::Paused, Harm::CutOff, Harm::DiskFull].map(|harm| of_node("a", harm));
    for of in spared.into_iter().chain([of_node("b", Harm::Killed), TroubleOf::Slowness, TroubleOf::Servers]) {
        assert_eq!(kinds(of.clone()), ["lost without cause"], "{of:?}");
    }
    let at_home = kinds_at_home(MisfirePolicy::Latest, &[S(10.0)], &[record("lost")], Some(of_node("a", Harm::CutOff)));
    assert_eq!(at_home, ["lost without cause"]);
}

#[test]
fn a_fire_of_a_node_that_has_no_record_and_a_run_that_has_none_are_seen() {
    let both = kinds_by_node(MisfirePolicy::All, &[S(10.0), F(10.1)], &[], None);
    assert_eq!(both, ["unaccounted", "unrecorded"]);
    let other = Run { id: "Q".to_owned(), ..record("skipped") };
    let of = Some(of_node("a", Harm::Killed));
    assert_eq!(kinds_by_node(MisfirePolicy::Skip, &[S(10.0), F(10.1)], &[other], of), ["unrecorded"]);
}

#[test]
fn what_was_missed_follows_the_rule_of_its_job() {
    use MisfirePolicy::{All, Latest, Skip};
    let killed = || Some(of_node("a", Harm::Killed));
    let (missed, ran) = ([S(18.0), F(18.1)], [record("succeeded")]);
    for (misfire, wanted) in [(Skip, &["missed and started"][..]), (Latest, &[]), (All, &[])] {
        assert_eq!(kinds_by_node(misfire, &missed, &ran, killed()), wanted, "{misfire:?}");
    }
    // A later fire was missed too.
    let troubles = [Trouble { from: at(9.0), to: at(20.0), of: of_node("a", Harm::Killed) }];
    let newer = Line { run: "N".to_owned(), planned: at(15.0), fence: 2, ..S(18.0) };
    let of_newer = Line { mark: Mark::Finished, at: at(18.1), ..newer.clone() };
    let both = [missed.to_vec(), vec![newer, of_newer]].concat();
    let records = [record("succeeded"), Run { id: "N".to_owned(), planned: at(15.0), ..record("succeeded") }];
    let case = Case {
        due: &[at(10.0), at(15.0)],
        firer: Firer::Node { name: "a", misfire: Latest },
        late_after: Some(SignedDuration::from_secs(2)),
        ..case(&records, &both, &troubles)
    };
    let faults = judge(&case, &mut Tally::default());
    assert!(
        matches!(&faults[..], [Fault::MissedAndStarted(what)] if what.starts_with(&at(10.0).to_string())),
        "{faults:?}"
    );
    assert_eq!(kinds_by_node(All, &[], &[record("skipped")], killed()), ["skipped without cause"]);
    let short = [Trouble { from: at(9.0), to: at(14.0), of: of_node("a", Harm::Killed) }];
    let skipped = [record("skipped")];
    let case = Case { firer: Firer::Node { name: "a", misfire: Skip }, troubles: &short, ..case };
    let case = Case { due: &[at(10.0)], witness: &[], records: &skipped, ..case };
    let faults = judge(&case, &mut Tally::default());
    assert!(matches!(faults[..], [Fault::SkippedWithoutCause(_)]), "it was not missed yet: {faults:?}");
}

#[test]
fn a_fire_runs_at_two_homes_only_where_a_record_says_so() {
    let on = |node: &str, run: &str, fence: u64, marks: &[&str]| {
        let own = |line: Line| Line { run: run.to_owned(), node: node.to_owned(), fence, ..line };
        let marks = marks.iter().map(|mark| (*mark).to_owned()).collect();
        let (id, node_name) = (run.to_owned(), Some(node.to_owned()));
        ([own(S(10.1)), own(F(10.2))], Run { id, node_name, marks, ..record("succeeded") })
    };
    let kinds = |runs: &[([Line; 2], Run)], of: Option<TroubleOf>| {
        let lines: Vec<Line> = runs.iter().flat_map(|(lines, _)| lines.clone()).collect();
        let records: Vec<Run> = runs.iter().map(|(_, record)| record.clone()).collect();
        kinds_at_home(MisfirePolicy::All, &lines, &records, of)
    };
    let cut_off = || Some(of_node("a", Harm::CutOff));
    let (old, new) = (on("a", "R", 1, &["local", "cut_off", "may_have_run_twice"]), on("b", "Q", 2, &["local"]));
    assert!(kinds(&[old.clone(), new.clone()], cut_off()).is_empty());
    assert!(kinds(std::slice::from_ref(&old), cut_off()).is_empty(), "the next home began after it");
    let silent = on("a", "R", 1, &["local", "cut_off"]);
    let both = [silent, new.clone()];
    for harm in [Harm::CutOff, Harm::Paused] {
        assert_eq!(kinds(&both, Some(of_node("a", harm))), ["doubled", "recorded twice"]);
    }
    assert_eq!(kinds(&[old.clone(), new.clone()], None), ["marked without cause"]);
    let again = Line { at: at(11.0), ..old.0[0].clone() };
    let thrice = [old.0.to_vec(), vec![again], new.0.to_vec()].concat();
    assert_eq!(kinds_at_home(MisfirePolicy::All, &thrice, &[old.1.clone(), new.1], cut_off()), ["doubled"]);
    let each = kinds_by_node(MisfirePolicy::All, &old.0, &[old.1], cut_off());
    assert_eq!(each, ["marked without cause"], "nobody else fires what each node fires");
}

#[test]
fn a_fire_that_everybody_has_cancelled_is_left_out() {
    let cancelled = |why: &str| Run { reason: Some(why.to_owned()), ..record("cancelled") };
    let removed = cancelled("its job was removed from this node before it started");
    let cut_off = || Some(of_node("a", Harm::CutOff));
    assert_eq!(
        kinds_by_node(MisfirePolicy::All, &[], std::slice::from_ref(&removed), cut_off()),
        ["cancelled without cause"]
    );
    assert!(
        kinds_by_node(MisfirePolicy::All, &[], &[cancelled("its job was paused before its instant")], None).is_empty()
    );
    let marked = Run { marks: vec!["may_have_run_twice".to_owned()], ..removed };
    let elsewhere = Run { id: "Q".to_owned(), node_name: Some("b".to_owned()), ..record("skipped") };
    let at_home = |records: &[Run]| kinds_at_home(MisfirePolicy::Latest, &[], records, cut_off());
    assert_eq!(at_home(std::slice::from_ref(&marked)), ["cancelled without cause"]);
    assert!(at_home(&[marked, elsewhere]).is_empty());
}

#[test]
fn a_case_is_settled_when_every_fire_and_every_run_has_its_record() {
    let (lines, other) = ([S(10.0)], [Run { id: "Q".to_owned(), ..record("skipped") }]);
    assert!(is_settled(&case(&[record("running")], &lines, &[])));
    assert!(!is_settled(&case(&[], &[], &[])));
    assert!(!is_settled(&case(&other, &lines, &[])));
}
