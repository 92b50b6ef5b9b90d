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

#[cfg(test)]
mod tests {
    use super::*;

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
