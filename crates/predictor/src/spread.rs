//! Evenly spread subsets, to bound the work.

/// Fraction of the golden ratio: fractions of its multiples are spread evenly, and steps of a grid
/// never align with them.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Low-discrepancy value in 0..1; neighbouring numbers get distant values.
pub(crate) fn place(i: usize) -> f64 {
    (i as f64 * GOLDEN).fract()
}

/// Indices of at most `most` of `n` rows, ascending: one from each of `most` equal parts, at a
/// varying position in it.
///
/// Rows are often an ordered grid (batches by limits). Even steps would take every batch with the
/// same few limits.
pub(crate) fn spread_over(n: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = n.min(most);
    (0..taken).map(move |i| {
        let (from, to) = (i * n / taken, (i + 1) * n / taken);
        from + (place(i) * (to - from) as f64) as usize
    })
}

/// At most `most` items, evenly spread.
pub(crate) fn spread<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    spread_over(all.len(), most).map(|i| all[i].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_where_there_are_few_and_each_once_where_there_are_many() {
        for (n, most) in [(0, 4), (3, 4), (4, 4), (5, 4), (64, 48), (1000, 64), (7, 0)] {
            let found: Vec<usize> = spread_over(n, most).collect();
            assert_eq!(found.len(), n.min(most));
            assert!(
                found.windows(2).all(|pair| pair[0] < pair[1]) && found.iter().all(|i| *i < n),
                "{found:?}"
            );
        }
    }

    #[test]
    fn of_a_grid_every_row_and_every_column_is_seen() {
        // given: batches by limits, so many that even steps would hit every third limit only
        let (batches, limits) = (16, 12);
        let found: Vec<usize> = spread_over(batches * limits, 64).collect();
        let rows: std::collections::BTreeSet<usize> = found.iter().map(|i| i / limits).collect();
        let columns: std::collections::BTreeSet<usize> = found.iter().map(|i| i % limits).collect();
        assert_eq!((rows.len(), columns.len()), (batches, limits));
    }
}
