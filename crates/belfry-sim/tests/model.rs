//! The exhaustive model: its promises hold in every order of events, and each rule is needed for them.

use belfry_sim::model::{Explored, FIRES, Rule, Rules, State, explore};

/// A second or two.
const STATES_MAX: usize = 600_000;

#[test]
fn no_fire_starts_twice_or_after_it_was_decided_otherwise() {
    let Explored { states, complete, found } = explore(State::new(Rules::default(), FIRES, 1), STATES_MAX);
    println!("{states} states");
    if let Some(found) = found {
        panic!("{}:\n{}", found.what, found.way.join("\n"));
    }
    assert!(complete, "more than {STATES_MAX} states");
}

#[test]
fn when_nothing_fails_every_fire_is_decided() {
    let Explored { states, complete, found } = explore(State::new(Rules::default(), FIRES, 0), STATES_MAX);
    println!("{states} states");
    assert!(complete && found.is_none(), "{found:?}");
}

/// Looked for where there is least: with one fire most of the damage takes two failures, with two fires one.
#[test]
fn without_any_one_of_its_rules_the_model_finds_the_damage() {
    let mut needless = Vec::new();
    for rule in Rule::ALL {
        let rules = Rules { off: Some(rule) };
        let looks = [(1, 1), (1, 2), (FIRES, 1)];
        let found = looks
            .into_iter()
            .find_map(|(fires, failures_max)| explore(State::new(rules, fires, failures_max), STATES_MAX).found);
        match found {
            Some(found) => println!("without {rule:?}: {}, after {} steps", found.what, found.way.len()),
            None => needless.push(rule),
        }
    }
    assert!(needless.is_empty(), "no damage without {needless:?}: the model could not fail there");
}
