//! Whose clock is wrong. No clocks of two machines are ever compared for safety; this only decides who should not work until somebody
//! has looked.

/// How far one's own clock is off the median of all clocks that one knows, one's own among them. `others`: each minus one's own, in ms.
/// Of two middles the one nearer to one's own counts: with a single other clock nobody can say who is wrong, and nothing is given up.
pub fn own_offset_ms(others: impl IntoIterator<Item = i64>) -> i64 {
    let mut all: Vec<i64> = others.into_iter().chain([0]).collect();
    all.sort_unstable();
    let middles = [all[(all.len() - 1) / 2], all[all.len() / 2]];
    -middles.into_iter().min_by_key(|offset| offset.abs()).unwrap_or(0)
}

/// How far one clock is off what most of all agree on, itself among them. `others`: each minus it, in ms. None: nobody can say, as of two that
/// differ by more than `within_ms`, or of three that all do.
pub fn off_most_ms(others: impl IntoIterator<Item = i64>, within_ms: i64) -> Option<i64> {
    let mut all: Vec<i64> = others.into_iter().chain([0]).collect();
    all.sort_unstable();
    let middles = [all[(all.len() - 1) / 2], all[all.len() / 2]];
    let middle = middles.into_iter().min_by_key(|offset| offset.abs())?;
    let agree = all.iter().filter(|offset| offset.abs_diff(middle) <= within_ms.unsigned_abs()).count();
    (agree * 2 > all.len()).then_some(-middle)
}

/// How far the others are off one's own clock, after that was seen to step: its own word counts for nothing then, so a single other is
/// enough. None: there is nobody to ask.
pub fn others_offset_ms(others: impl IntoIterator<Item = i64>) -> Option<i64> {
    let mut all: Vec<i64> = others.into_iter().collect();
    all.sort_unstable();
    let middles = [*all.get(all.len().checked_sub(1)? / 2)?, *all.get(all.len() / 2)?];
    middles.into_iter().min_by_key(|offset| offset.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_step_the_others_decide() {
        for (others, offset) in [
            (vec![], None),
            (vec![-3_600_000], Some(-3_600_000)),
            (vec![7], Some(7)),
            (vec![-3_600_000, 3], Some(3)),
            (vec![-3_600_000, -3_600_001, 3], Some(-3_600_000)),
        ] {
            assert_eq!(others_offset_ms(others.clone()), offset, "{others:?}");
        }
    }

    #[test]
    fn what_most_agree_on_is_known_unless_they_are_divided() {
        for (others, off) in [
            (vec![], Some(0)),
            (vec![7], Some(0)),
            (vec![3_600_000], None),
            (vec![3_600_000, 3_600_010], Some(-3_600_000)),
            (vec![-3_600_000, -3_600_010, 5], None),
            (vec![3_600_000, 0, 5], Some(0)),
            (vec![-30_000, 5_370_000], None),
            (vec![-30_000, -30_010, 5_370_000, 5_370_010], None),
            (vec![-2_400, -2_500, -2_600], Some(2_400)),
        ] {
            assert_eq!(off_most_ms(others.clone(), 2_000), off, "{others:?}");
        }
    }

    #[test]
    fn the_one_that_differs_from_most_is_wrong() {
        for (others, own) in [
            (vec![], 0),
            (vec![3_600_000], 0),
            (vec![3_600_000, 3_600_010], -3_600_000),
            (vec![5, 3_600_000], -5),
            (vec![3_600_000, 3_600_000, 0], 0),
            (vec![-7_000, -7_001, -7_002], 7_000),
            (vec![-3, 4, 3_600_000, -3_600_000], 0),
        ] {
            assert_eq!(own_offset_ms(others.clone()), own, "{others:?}");
        }
    }
}
