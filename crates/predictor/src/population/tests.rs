use super::*;

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
    }
}

#[test]
fn many_profiles_move_the_prior_and_one_outlier_does_not() {
    let fit = |members: &[FittedProfile]| {
        let population = Population::fit(Quantity::Time, &members.iter().collect::<Vec<_>>());
        population.expect(Quantity::Time, Size::default(), &[]).prior
    };
    let mut members: Vec<FittedProfile> = (0..12).map(|i| member(i, 0.5 + 0.05 * (i % 3) as f64)).collect();
    let honest = fit(&members);
    assert!(honest.mean[1] > 0.19 && honest.own[1] < Quantity::Time.between()[1], "{honest:?}");
    members.push(member(99, -5.0));
    assert!((fit(&members).mean[1] - honest.mean[1]).abs() < 0.1, "{:?}", fit(&members));
}
