//! Nodes of a gang.

/// Whether two gangs hold the same nodes, in any order. Only the order of members differs then, so no member
/// needs to move. Nodes of a gang do not repeat.
///
/// ```
/// use andreas_model::same_nodes;
/// assert!(same_nodes(&["a", "b"], &["b", "a"]));
/// assert!(!same_nodes(&["a", "b"], &["a", "c"]));
/// ```
pub fn same_nodes<T: Ord>(a: &[T], b: &[T]) -> bool {
    if a == b {
        return true;
    }
    if a.len() != b.len() || a.len() < 2 {
        return false;
    }
    let sorted = |nodes: &[T]| {
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_unstable_by(|x, y| nodes[*x].cmp(&nodes[*y]));
        order
    };
    sorted(a).into_iter().zip(sorted(b)).all(|(x, y)| a[x] == b[y])
}

#[cfg(test)]
mod tests {
    use super::same_nodes;

    #[test]
    fn the_order_of_nodes_does_not_matter() {
        for (a, b, same) in [
            (&[][..], &[][..], true),
            (&[1], &[1], true),
            (&[1], &[2], false),
            (&[1, 2, 3], &[3, 1, 2], true),
            (&[1, 2, 3], &[1, 2, 4], false),
            (&[1, 2], &[1, 2, 3], false),
        ] {
            assert_eq!(same_nodes(a, b), same, "{a:?} {b:?}");
            assert_eq!(same_nodes(b, a), same, "{b:?} {a:?}");
        }
    }
}
