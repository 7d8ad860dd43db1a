//! The order in which a user would measure a profile.

/// A run's place; logs, except for the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// GPUs.
    pub gpus: f64,
    /// Nodes.
    pub nodes: f64,
    /// Samples of a global batch.
    pub batch: f64,
    /// Infinite without a limit.
    pub limit: f64,
}

/// Indices of the first runs, of runs ordered by GPUs, nodes and batch. First the middle batch on
/// the fewest GPUs with the highest limit; then the nearest batch per GPU on the next number
/// of GPUs; then the smallest and largest batch on the fewest. At most
/// `count` indices.
pub fn first_runs(runs: &[Run], count: usize) -> Vec<usize> {
    let highest = runs.iter().map(|r| r.limit).fold(f64::NEG_INFINITY, f64::max);
    let free: Vec<usize> = (0..runs.len()).filter(|i| runs[*i].limit >= highest).collect();
    let on_next = |above: f64| -> Vec<usize> {
        let more = free.iter().copied().filter(|i| runs[*i].gpus > above);
        let gpus = more.clone().map(|i| runs[i].gpus).fold(f64::INFINITY, f64::min);
        more.filter(|i| runs[*i].gpus <= gpus).collect()
    };
    let fewest = on_next(f64::NEG_INFINITY);
    let Some(start) = fewest.get(fewest.len() / 2).copied() else { return Vec::new() };
    // The same on more GPUs: as few nodes, and the nearest batch per GPU.
    let per_gpu = |i: usize| runs[i].batch - runs[i].gpus;
    let far = |i: &usize| (runs[*i].nodes, (per_gpu(*i) - per_gpu(start)).abs());
    let near = |a: &usize, b: &usize| far(a).partial_cmp(&far(b)).unwrap_or(std::cmp::Ordering::Equal);
    let next = on_next(runs[start].gpus).into_iter().min_by(near);
    let ends = [fewest[0], fewest[fewest.len() - 1]];
    let mut found: Vec<usize> = Vec::new();
    for i in [start].into_iter().chain(next).chain(ends).chain(free).chain(0..runs.len()) {
        if found.len() < count && !found.contains(&i) {
            found.push(i);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_starts_in_the_middle_without_a_limit_and_keeps_the_batch_of_a_gpu() {
        let run = |gpus: f64, batch: f64, limit: f64| Run { gpus, nodes: 0.0, batch, limit };
        let runs: Vec<Run> = [0.0, 1.0]
            .into_iter()
            .flat_map(|gpus| [-1.0, 0.1, 1.0].map(|batch| [run(gpus, batch, 9.0), run(gpus, batch, 5.0)]))
            .flatten()
            .collect();
        let at: Vec<Run> = first_runs(&runs, 4).into_iter().map(|i| runs[i]).collect();
        assert_eq!(at, [run(0.0, 0.1, 9.0), run(1.0, 1.0, 9.0), run(0.0, -1.0, 9.0), run(0.0, 1.0, 9.0)]);
    }
}
