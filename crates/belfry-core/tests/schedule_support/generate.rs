//! Random expressions around a featured operator, and which operators an expression uses.

use super::expression::{DAY, Expression, FieldKind, HOUR, Item, MINUTE, MONTH, SECOND, WEEKDAY, YEAR};
use super::random::Random;

/// Operators and macros that show within two days.
pub const DENSE: [&str; 22] = [
    "5 fields",
    "6 fields",
    "list",
    "range",
    "wrapping range",
    "*/n",
    "a/n",
    "a-b/n",
    "names",
    "?",
    "H",
    "H/n",
    "H(a-b)",
    "H(a-b)/n",
    "day or weekday",
    "7 is Sunday",
    "@hourly",
    "@daily",
    "@midnight",
    "@weekly",
    "fixed time",
    "interval",
];
/// Those that need the calendar.
pub const SPARSE: [&str; 12] =
    ["L", "L-n", "LW", "nW", "nL", "n#k", "7 fields", "year", "@monthly", "@yearly", "@annually", "day or weekday"];

pub fn generate(random: &mut Random, featured: &'static str, near_year: i64) -> Expression {
    let mut expression = baseline(random, SPARSE.contains(&featured));
    let whole = [SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY];
    match featured {
        "5 fields" => expression.second = None,
        "6 fields" => expression.second = Some(second_items(random)),
        "list" => {
            let field = *random.pick(&whole);
            let items = (0..random.within(2, 4)).map(|_| plain_item(random, field)).collect();
            put(&mut expression, field, items);
        }
        "range" | "wrapping range" | "a-b/n" | "H(a-b)" | "H(a-b)/n" => {
            let field = *random.pick(&whole);
            let (a, b) = (random.within(field.min, field.max), random.within(field.min, field.max));
            let (low, high) = (a.min(b), a.max(b));
            let n = random.within(1, field.max - field.min + 1);
            let n = if random.one_in(2) { n.min(5) } else { n };
            let item = match featured {
                "range" => Item::Range(low, high),
                "wrapping range" if low == high => Item::Range(field.max, field.min),
                "wrapping range" => Item::Range(high, low),
                "a-b/n" => Item::StepRange(a, b, n),
                "H(a-b)" => Item::HashRange(a, b),
                _ => Item::HashRangeStep(a, b, n),
            };
            put(&mut expression, field, vec![item]);
        }
        "*/n" | "a/n" | "H/n" => {
            let field = *random.pick(&whole);
            let n = random.within(1, field.max - field.min + 1);
            let item = match featured {
                "*/n" => Item::StepAny(n),
                "a/n" => Item::StepFrom(random.within(field.min, field.max), n),
                _ => Item::HashStep(n),
            };
            put(&mut expression, field, vec![item]);
        }
        "H" => put(&mut expression, *random.pick(&whole), vec![Item::Hash]),
        "names" => {
            let field = *random.pick(&[MONTH, WEEKDAY]);
            let (a, b) = (random.within(field.min, field.max), random.within(field.min, field.max));
            put(&mut expression, field, vec![*random.pick(&[Item::Name(a), Item::NameRange(a, b)])]);
        }
        "?" => put(&mut expression, *random.pick(&[DAY, WEEKDAY]), vec![Item::Question]),
        "7 is Sunday" => {
            let item = match random.within(0, 3) {
                0 => Item::Value(7),
                1 => Item::Range(random.within(0, 7), 7),
                2 => Item::Range(7, random.within(0, 7)),
                _ => Item::StepRange(random.within(0, 7), 7, random.within(1, 7)),
            };
            expression.weekday = vec![item];
        }
        "day or weekday" => {
            expression.day = vec![Item::Value(random.within(1, 31)), plain_item(random, DAY)];
            expression.weekday = vec![Item::Value(random.within(0, 7))];
        }
        "fixed time" => {
            expression.minute = (0..random.within(1, 3)).map(|_| Item::Value(random.within(0, 59))).collect();
            expression.hour = (0..random.within(1, 8)).map(|_| Item::Value(random.within(0, 23))).collect();
        }
        "interval" => {
            expression.minute = vec![*random.pick(&[Item::Any, Item::StepAny(15), Item::StepAny(7), Item::Value(30)])];
            expression.hour = vec![*random.pick(&[Item::Any, Item::StepAny(2), Item::StepAny(3)])];
        }
        "L" => expression.day = vec![Item::Last],
        "L-n" => expression.day = vec![Item::LastMinus(random.within(1, 30))],
        "LW" => expression.day = vec![Item::LastWorkingDay],
        "nW" => expression.day = vec![Item::Nearest(random.within(1, 31))],
        "nL" => expression.weekday = vec![Item::LastOf(random.within(0, 7))],
        "n#k" => expression.weekday = vec![Item::Nth(random.within(0, 7), random.within(1, 5))],
        "year" | "7 fields" => {
            let year = near_year.clamp(1970, 2196);
            let item = match random.within(0, 4) {
                0 => Item::Value(year),
                1 => Item::Range(year, year + 2),
                2 => Item::StepFrom(year, random.within(1, 3)),
                3 => Item::StepAny(random.within(1, 4)),
                _ => Item::StepRange(1970, year + 1, random.within(1, 3)),
            };
            expression.second = Some(vec![Item::Value(random.within(0, 59))]);
            expression.year = Some(if random.one_in(4) { vec![item, Item::Value(year + 1)] } else { vec![item] });
            if random.one_in(2) {
                expression.day = vec![Item::Any];
            }
        }
        _ => return named(featured, expression.seed),
    }
    if SPARSE.contains(&featured) && random.one_in(5) {
        // Specials in lists, and next to the other day field.
        expression.day.push(Item::Value(random.within(1, 31)));
    }
    expression
}

fn named(name: &'static str, seed: u64) -> Expression {
    let zero = vec![Item::Value(0)];
    let any = vec![Item::Any];
    let first = vec![Item::Value(1)];
    let mut expression = Expression {
        second: None,
        minute: zero.clone(),
        hour: zero.clone(),
        day: any.clone(),
        month: any.clone(),
        weekday: any.clone(),
        year: None,
        macro_name: Some(name),
        seed,
    };
    match name {
        "@hourly" => expression.hour = any,
        "@daily" | "@midnight" => {}
        "@weekly" => expression.weekday = zero,
        "@monthly" => expression.day = first,
        "@yearly" | "@annually" => (expression.day, expression.month) = (first.clone(), first),
        other => panic!("{other} is no macro"),
    }
    expression
}

fn baseline(random: &mut Random, sparse: bool) -> Expression {
    let value = |random: &mut Random, field: FieldKind| vec![Item::Value(random.within(field.min, field.max))];
    let mut expression = Expression {
        second: None,
        minute: value(random, MINUTE),
        // The hours in which clocks change are the interesting ones.
        hour: vec![Item::Value(if random.one_in(2) { random.within(0, 4) } else { random.within(0, 23) })],
        day: vec![Item::Any],
        month: vec![Item::Any],
        weekday: vec![Item::Any],
        year: None,
        macro_name: None,
        seed: random.next(),
    };
    if random.one_in(3) {
        expression.second = Some(second_items(random));
    }
    if !sparse {
        if random.one_in(2) {
            expression.minute =
                vec![*random.pick(&[Item::Any, Item::StepAny(5), Item::StepAny(15), Item::StepFrom(7, 20)])];
        }
        if random.one_in(2) {
            expression.hour = vec![*random.pick(&[Item::Any, Item::StepAny(2), Item::Range(1, 3), Item::Range(22, 3)])];
        }
    }
    if random.one_in(4) {
        expression.weekday = vec![*random.pick(&[Item::Range(1, 5), Item::Value(0), Item::Range(5, 1)])];
    }
    if sparse && random.one_in(3) {
        expression.month = vec![plain_item(random, MONTH), plain_item(random, MONTH)];
    }
    expression
}

fn second_items(random: &mut Random) -> Vec<Item> {
    match random.within(0, 19) {
        0 => vec![Item::Any],
        1..=4 => vec![Item::StepAny(random.within(10, 60))],
        5..=8 => vec![Item::Value(0), Item::Value(random.within(0, 59))],
        _ => vec![Item::Value(random.within(0, 59))],
    }
}

fn plain_item(random: &mut Random, field: FieldKind) -> Item {
    let a = random.within(field.min, field.max);
    match random.within(0, 3) {
        0 => Item::Range(a, (a + 2).min(field.max)),
        1 => Item::StepFrom(a, random.within(1, field.max - field.min + 1)),
        _ => Item::Value(a),
    }
}

fn put(expression: &mut Expression, field: FieldKind, items: Vec<Item>) {
    match field.position {
        0 => expression.second = Some(items),
        1 => expression.minute = items,
        2 => expression.hour = items,
        3 => expression.day = items,
        4 => expression.month = items,
        _ => expression.weekday = items,
    }
}

/// The operators that an expression uses, by their names in [`DENSE`] and [`SPARSE`].
pub fn operators(expression: &Expression) -> Vec<&'static str> {
    if let Some(name) = expression.macro_name {
        return vec![name];
    }
    let mut found = vec![match (&expression.second, &expression.year) {
        (None, _) => "5 fields",
        (Some(_), None) => "6 fields",
        (Some(_), Some(_)) => "7 fields",
    }];
    found.push(if expression.is_fixed_time() { "fixed time" } else { "interval" });
    found.extend(expression.is_either_day().then_some("day or weekday"));
    found.extend(expression.year.is_some().then_some("year"));
    let empty = Vec::new();
    let fields = [
        (SECOND, expression.second.as_ref().unwrap_or(&empty)),
        (MINUTE, &expression.minute),
        (HOUR, &expression.hour),
        (DAY, &expression.day),
        (MONTH, &expression.month),
        (WEEKDAY, &expression.weekday),
        (YEAR, expression.year.as_ref().unwrap_or(&empty)),
    ];
    for (field, items) in fields {
        found.extend((items.len() > 1).then_some("list"));
        for item in items {
            found.extend(match *item {
                Item::Any => None,
                Item::Question => Some("?"),
                Item::Value(v) => (field == WEEKDAY && v == 7).then_some("7 is Sunday"),
                Item::Name(_) | Item::NameRange(..) => Some("names"),
                Item::Range(a, b) if a == 7 || b == 7 => (field == WEEKDAY).then_some("7 is Sunday").or(Some("range")),
                Item::Range(a, b) if a > b => Some("wrapping range"),
                Item::Range(..) => Some("range"),
                Item::StepAny(_) => Some("*/n"),
                Item::StepFrom(..) => Some("a/n"),
                Item::StepRange(..) => Some("a-b/n"),
                Item::Hash => Some("H"),
                Item::HashStep(_) => Some("H/n"),
                Item::HashRange(..) => Some("H(a-b)"),
                Item::HashRangeStep(..) => Some("H(a-b)/n"),
                Item::Last => Some("L"),
                Item::LastMinus(_) => Some("L-n"),
                Item::LastWorkingDay => Some("LW"),
                Item::Nearest(_) => Some("nW"),
                Item::Nth(..) => Some("n#k"),
                Item::LastOf(_) => Some("nL"),
            });
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}
