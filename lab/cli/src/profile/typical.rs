//! The workload that a curve over GPUs is drawn for: the most common batch and GPUs per node of the rows.

use super::csv::USUAL_NODE;

/// The batch as a function of the number of GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Batch {
    Unknown,
    /// Constant over all GPUs together.
    Global(f64),
    /// Constant on each GPU.
    PerGpu(f64),
}

/// Most common batch and GPUs per node of a profile's rows on a GPU type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TypicalWorkload {
    batch: Batch,
    per_node: u32,
}

/// The most common number and its count; the middle one of several.
fn most(mut numbers: Vec<f64>) -> Option<(f64, usize)> {
    numbers.sort_by(f64::total_cmp);
    let same = |a: &f64, b: &f64| (a - b).abs() <= 1e-9 * b.abs();
    let groups: Vec<(f64, usize)> = numbers.chunk_by(same).map(|group| (group[0], group.len())).collect();
    let often = groups.iter().map(|(_, count)| *count).max()?;
    let groups: Vec<(f64, usize)> = groups.into_iter().filter(|(_, count)| *count == often).collect();
    groups.get(groups.len() / 2).copied()
}

impl TypicalWorkload {
    /// From rows of (GPUs, nodes, batch).
    pub fn from_rows(rows: impl Iterator<Item = (u32, u32, Option<f64>)>) -> Self {
        let rows: Vec<(u32, u32, Option<f64>)> = rows.collect();
        let batches = |of: fn(f64, f64) -> f64| {
            most(
                rows.iter()
                    .filter_map(|(gpus, _, batch)| Some(of((*batch)?, f64::from((*gpus).max(1)))))
                    .collect(),
            )
        };
        let batch = match (batches(|batch, _| batch), batches(|batch, gpus| batch / gpus)) {
            (Some((_, all)), Some((each, count))) if count > all => Batch::PerGpu(each),
            (Some((all, _)), _) => Batch::Global(all),
            _ => Batch::Unknown,
        };
        // A node counts as full from its largest use; without multi-node runs, not below [`USUAL_NODE`] GPUs.
        let per_node = rows.iter().map(|(gpus, nodes, _)| gpus.div_ceil((*nodes).max(1))).max().unwrap_or(1);
        let spread = rows.iter().any(|(_, nodes, _)| *nodes > 1);
        let least = if spread { 1 } else { USUAL_NODE };
        Self { batch, per_node: per_node.max(least) }
    }

    /// Batch of all GPUs together, for this many GPUs.
    pub fn batch(&self, gpus: u32) -> Option<f64> {
        match self.batch {
            Batch::Unknown => None,
            Batch::Global(batch) => Some(batch),
            Batch::PerGpu(batch) => Some(batch * f64::from(gpus)),
        }
    }

    /// Nodes for this many GPUs.
    pub fn nodes(&self, gpus: u32) -> u32 {
        gpus.div_ceil(self.per_node).max(1)
    }

    /// The batch in words.
    pub fn text(&self) -> Option<String> {
        match self.batch {
            Batch::Unknown => None,
            Batch::Global(batch) => Some(super::number_of(batch)),
            Batch::PerGpu(batch) => Some(format!("{} per GPU", super::number_of(batch))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_that_of_all_gpus_or_of_each_as_most_rows_have_it() {
        let typical = |rows: &[(u32, u32, Option<f64>)]| TypicalWorkload::from_rows(rows.iter().copied());
        let weak =
            typical(&[(1, 1, Some(16.0)), (2, 1, Some(32.0)), (8, 2, Some(128.0)), (8, 1, Some(64.0))]);
        assert_eq!((weak.batch(4), weak.text().as_deref()), (Some(64.0), Some("16 per GPU")));
        let strong =
            typical(&[(1, 1, Some(64.0)), (2, 1, Some(64.0)), (4, 1, Some(64.0)), (4, 1, Some(12.5))]);
        assert_eq!((strong.batch(4), strong.nodes(6), strong.text().as_deref()), (Some(64.0), 1, Some("64")));
        assert_eq!(typical(&[(1, 1, None)]).text(), None);
        assert_eq!(typical(&[]).nodes(9), 2);
        assert_eq!(typical(&[(4, 1, None), (8, 2, None)]).nodes(16), 4);
    }
}
