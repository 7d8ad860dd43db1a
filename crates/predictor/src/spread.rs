//! Evenly spread subsets, to bound the work.

/// Fraction of the golden ratio: fractions of its multiples are spread evenly, and steps of a grid
/// never align with them.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Low-discrepancy value in 0..1; neighbouring numbers get distant values.
pub(crate) fn place(i: usize) -> f64 {
    (i as f64 * GOLDEN).fract()
}

/// At most `most` items, in their order: one from each of `most` equal parts, at a varying position
/// in it.
///
/// Rows are often an ordered grid (batches by limits). Even steps would take every batch with the
/// same few limits.
pub(crate) fn spread<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    let (n, taken) = (all.len(), all.len().min(most));
    let of = |i: usize| {
        let (from, to) = (i * n / taken, (i + 1) * n / taken);
        all[from + (place(i) * (to - from) as f64) as usize].clone()
    };
    (0..taken).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_grid_every_row_and_every_column_is_seen() {
        // given: batches by limits, so many that even steps would hit every third limit only
        let (batches, limits) = (16, 12);
        let found = spread(&(0..batches * limits).collect::<Vec<usize>>(), 64);
        assert!(found.len() == 64 && found.windows(2).all(|pair| pair[0] < pair[1]));
        let rows: std::collections::BTreeSet<usize> = found.iter().map(|i| i / limits).collect();
        let columns: std::collections::BTreeSet<usize> = found.iter().map(|i| i % limits).collect();
        assert_eq!((rows.len(), columns.len()), (batches, limits));
    }
}
