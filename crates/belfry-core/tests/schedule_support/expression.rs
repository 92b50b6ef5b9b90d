//! A cron expression as a structure that renders to text and answers by predicate whether a value matches.

use jiff::civil::Date;
use xxhash_rust::xxh3::xxh3_64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    Any,
    Question,
    Value(i64),
    Name(i64),
    Range(i64, i64),
    NameRange(i64, i64),
    StepAny(i64),
    StepFrom(i64, i64),
    StepRange(i64, i64, i64),
    Hash,
    HashStep(i64),
    HashRange(i64, i64),
    HashRangeStep(i64, i64, i64),
    Last,
    LastMinus(i64),
    LastWorkingDay,
    Nearest(i64),
    Nth(i64, i64),
    LastOf(i64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldKind {
    pub position: u8,
    pub min: i64,
    pub max: i64,
}

pub const SECOND: FieldKind = FieldKind { position: 0, min: 0, max: 59 };
pub const MINUTE: FieldKind = FieldKind { position: 1, min: 0, max: 59 };
pub const HOUR: FieldKind = FieldKind { position: 2, min: 0, max: 23 };
pub const DAY: FieldKind = FieldKind { position: 3, min: 1, max: 31 };
pub const MONTH: FieldKind = FieldKind { position: 4, min: 1, max: 12 };
pub const WEEKDAY: FieldKind = FieldKind { position: 5, min: 0, max: 6 };
pub const YEAR: FieldKind = FieldKind { position: 6, min: 1970, max: 2199 };

const MONTH_NAMES: [&str; 12] = ["JAN", "feb", "Mar", "APR", "may", "Jun", "JUL", "aug", "Sep", "OCT", "nov", "Dec"];
const WEEKDAY_NAMES: [&str; 7] = ["SUN", "mon", "Tue", "WED", "thu", "Fri", "SAT"];

#[derive(Clone, Debug)]
pub struct Expression {
    /// None: five fields.
    pub second: Option<Vec<Item>>,
    pub minute: Vec<Item>,
    pub hour: Vec<Item>,
    pub day: Vec<Item>,
    pub month: Vec<Item>,
    pub weekday: Vec<Item>,
    /// Only together with `second`.
    pub year: Option<Vec<Item>>,
    /// A macro that stands for the fields.
    pub macro_name: Option<&'static str>,
    pub seed: u64,
}

impl FieldKind {
    fn name(self, value: i64) -> &'static str {
        if self == MONTH { MONTH_NAMES[value as usize - 1] } else { WEEKDAY_NAMES[value as usize % 7] }
    }

    pub fn render(self, items: &[Item]) -> String {
        items.iter().map(|item| self.render_item(*item)).collect::<Vec<_>>().join(",")
    }

    fn render_item(self, item: Item) -> String {
        match item {
            Item::Any => "*".into(),
            Item::Question => "?".into(),
            Item::Value(v) => v.to_string(),
            Item::Name(v) => self.name(v).into(),
            Item::Range(a, b) => format!("{a}-{b}"),
            Item::NameRange(a, b) => format!("{}-{}", self.name(a), self.name(b)),
            Item::StepAny(n) => format!("*/{n}"),
            Item::StepFrom(a, n) => format!("{a}/{n}"),
            Item::StepRange(a, b, n) => format!("{a}-{b}/{n}"),
            Item::Hash => "H".into(),
            Item::HashStep(n) => format!("H/{n}"),
            Item::HashRange(a, b) => format!("H({a}-{b})"),
            Item::HashRangeStep(a, b, n) => format!("H({a}-{b})/{n}"),
            Item::Last => "L".into(),
            Item::LastMinus(n) => format!("L-{n}"),
            Item::LastWorkingDay => "LW".into(),
            Item::Nearest(d) => format!("{d}W"),
            Item::Nth(w, n) => format!("{w}#{n}"),
            Item::LastOf(w) => format!("{w}L"),
        }
    }

    /// Where `value` stands when counting from `a` to `b` round the field, if it is met on the way.
    fn steps_from(self, a: i64, b: i64, value: i64) -> Option<i64> {
        let count = self.max - self.min + 1;
        // Only 0-7 of the week goes the whole way round.
        let length = if b - a == count { count } else { (b - a).rem_euclid(count) };
        let steps = (value - a).rem_euclid(count);
        (steps <= length).then_some(steps)
    }

    fn holds(self, item: Item, seed: u64, value: i64) -> bool {
        let mut input = seed.to_le_bytes().to_vec();
        input.push(self.position);
        let hash = xxh3_64(&input);
        let hash_top = if self == DAY { 28 } else { self.max };
        let size = |a: i64, b: i64| {
            if b - a == self.max - self.min + 1 { b - a + 1 } else { (b - a).rem_euclid(self.max - self.min + 1) + 1 }
        };
        match item {
            Item::Any | Item::Question => true,
            Item::Value(v) | Item::Name(v) => value == if self == WEEKDAY { v % 7 } else { v },
            Item::Range(a, b) | Item::NameRange(a, b) => self.steps_from(a, b, value).is_some(),
            Item::StepAny(n) => (value - self.min) % n == 0,
            Item::StepFrom(a, n) => {
                let a = if self == WEEKDAY { a % 7 } else { a };
                value >= a && (value - a) % n == 0
            }
            Item::StepRange(a, b, n) => self.steps_from(a, b, value).is_some_and(|steps| steps % n == 0),
            Item::Hash => value == self.min + (hash % (hash_top - self.min + 1) as u64) as i64,
            Item::HashStep(n) => {
                let phase = (hash % n.min(hash_top - self.min + 1) as u64) as i64;
                value <= hash_top && value - self.min >= phase && (value - self.min - phase) % n == 0
            }
            Item::HashRange(a, b) => self.steps_from(a, b, value) == Some((hash % size(a, b) as u64) as i64),
            Item::HashRangeStep(a, b, n) => {
                let phase = (hash % n.min(size(a, b)) as u64) as i64;
                self.steps_from(a, b, value).is_some_and(|steps| steps >= phase && (steps - phase) % n == 0)
            }
            Item::Last
            | Item::LastMinus(_)
            | Item::LastWorkingDay
            | Item::Nearest(_)
            | Item::Nth(..)
            | Item::LastOf(_) => false,
        }
    }

    /// Every value of the field that matches, as a table indexed by value (by year - 1970 for years).
    pub fn table(self, items: &[Item], seed: u64) -> Vec<bool> {
        let base = if self == YEAR { self.min } else { 0 };
        (base..=self.max).map(|v| v >= self.min && items.iter().any(|item| self.holds(*item, seed, v))).collect()
    }
}

impl Expression {
    pub fn render(&self) -> String {
        if let Some(name) = self.macro_name {
            return name.to_owned();
        }
        let mut fields = Vec::new();
        fields.extend(self.second.as_ref().map(|items| SECOND.render(items)));
        fields.push(MINUTE.render(&self.minute));
        fields.push(HOUR.render(&self.hour));
        fields.push(DAY.render(&self.day));
        fields.push(MONTH.render(&self.month));
        fields.push(WEEKDAY.render(&self.weekday));
        fields.extend(self.year.as_ref().map(|items| YEAR.render(items)));
        fields.join(" ")
    }

    pub fn items(&self) -> impl Iterator<Item = &Item> {
        let optional = self.second.iter().chain(&self.year);
        let always = [&self.minute, &self.hour, &self.day, &self.month, &self.weekday];
        optional.chain(always).flatten()
    }

    /// Vixie's rule, on the first item: `*`, `*/n`, `?`, and `H/n` as its hashed relative.
    fn is_wild(items: &[Item]) -> bool {
        matches!(items[0], Item::Any | Item::Question | Item::StepAny(_) | Item::HashStep(_))
    }

    pub fn is_fixed_time(&self) -> bool {
        !Self::is_wild(&self.minute) && !Self::is_wild(&self.hour)
    }

    pub fn is_either_day(&self) -> bool {
        !Self::is_wild(&self.day) && !Self::is_wild(&self.weekday)
    }

    pub fn matches_date(&self, date: Date) -> bool {
        let number = |v: i8| i64::from(v);
        let weekday = number(date.weekday().to_sunday_zero_offset());
        let by_date = self.day.iter().any(|item| match *item {
            Item::Last => date == date.last_of_month(),
            Item::LastMinus(n) => number(date.day()) == number(date.days_in_month()) - n,
            Item::LastWorkingDay => {
                Some(number(date.day())) == nearest_working_day(date, number(date.days_in_month()), true)
            }
            Item::Nearest(d) => Some(number(date.day())) == nearest_working_day(date, d, false),
            item => DAY.holds(item, self.seed, number(date.day())),
        });
        let by_weekday = self.weekday.iter().any(|item| match *item {
            Item::Nth(w, n) => w % 7 == weekday && (number(date.day()) + 6) / 7 == n,
            Item::LastOf(w) => w % 7 == weekday && date.day() + 7 > date.days_in_month(),
            item => WEEKDAY.holds(item, self.seed, weekday),
        });
        let day = if self.is_either_day() { by_date || by_weekday } else { by_date && by_weekday };
        day && self.month.iter().any(|item| MONTH.holds(*item, self.seed, number(date.month())))
            && self
                .year
                .as_ref()
                .is_none_or(|items| items.iter().any(|item| YEAR.holds(*item, self.seed, i64::from(date.year()))))
            && (1970..=2199).contains(&date.year())
    }
}

/// Tries every day of the month: the nearest from Monday to Friday, or with `before_only` the nearest that is not later.
fn nearest_working_day(date: Date, day: i64, before_only: bool) -> Option<i64> {
    if day > i64::from(date.days_in_month()) {
        return None;
    }
    let first = date.first_of_month();
    (1..=i64::from(date.days_in_month()))
        .filter(|d| {
            let candidate = first.saturating_add(jiff::Span::new().days(*d - 1));
            !matches!(candidate.weekday(), jiff::civil::Weekday::Saturday | jiff::civil::Weekday::Sunday)
                && (!before_only || *d <= day)
        })
        .min_by_key(|d| (d - day).abs())
}
