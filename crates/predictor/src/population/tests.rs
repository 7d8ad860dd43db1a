use super::*;
use crate::populations::Populations;

fn member(i: usize, overhead: f64) -> FittedProfile {
    let mut found = [Found { mean: 0.0, variance: 0.01 }; P];
    found[1].mean = overhead;
    FittedProfile {
        name: format!("n{i}/a"),
        namespace: format!("n{i}"),
        model: None,
        size: Size::default(),
        found,
        on: Vec::new(),
        intensity: None,
        network: [0.0; 2],
        placed: Vec::new(),
        rows: Rows { prior: Population::new(Quantity::Time).prior, sites: Vec::new() },
    }
}

#[test]
fn families_inform_their_tenant_and_others_little() {
    let own = |i: usize| FittedProfile {
        name: format!("lab/f{i}"),
        namespace: "lab".into(),
        ..member(i, 0.5 + 0.05 * (i % 3) as f64)
    };
    let fit = |members: &[FittedProfile], asks: &str| {
        let populations = Populations::fit(Quantity::Time, &members.iter().collect::<Vec<_>>());
        populations.of(asks).expect(Quantity::Time, Size::default(), &[]).prior
    };
    let mut members: Vec<FittedProfile> = (0..12).map(own).collect();
    let honest = fit(&members, "lab");
    assert!(honest.mean[1] > 0.19 && honest.own[1] < Quantity::Time.between()[1], "{honest:?}");
    members.extend((0..50).map(|_| FittedProfile {
        namespace: "liar".into(),
        name: "liar/f".into(),
        ..member(99, -5.0)
    }));
    let off = (fit(&members, "lab").mean[1] - honest.mean[1]).abs();
    assert!(off < 0.01, "{off}");
    // Many tenants that agree move a new tenant's prior; one tenant hardly does.
    let isolated: Vec<FittedProfile> = (0..40).map(|i| member(i, 0.5)).collect();
    let moved = |n: usize| fit(&isolated[..n], "new").mean[1] - Quantity::Time.means()[1];
    assert!(moved(40) > 0.6 && (0.0..0.05).contains(&moved(1)), "{} {}", moved(40), moved(1));
}
