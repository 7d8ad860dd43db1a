use super::*;

fn member(i: usize, overhead: f64) -> Member {
    let mut found = [Found { mean: 0.0, variance: 0.01 }; P];
    found[1].mean = overhead;
    Member {
        name: format!("n{i}/a"),
        namespace: format!("n{i}"),
        model: None,
        size: Size::default(),
        found,
        on: Vec::new(),
        bulk: None,
        network: [0.0; 2],
        placed: Vec::new(),
        rows: Rows { prior: Population::new(Quantity::Time).prior, sites: Vec::new() },
    }
}

#[test]
fn families_teach_the_next_one_and_a_namespace_that_lies_teaches_little() {
    let mut members: Vec<Member> = (0..12).map(|i| member(i, 0.5 + 0.05 * (i % 3) as f64)).collect();
    let fit = |members: &[Member]| {
        let members: Vec<&Member> = members.iter().collect();
        Population::fit(Quantity::Time, &members).expect(Quantity::Time, Size::default(), &[]).prior
    };
    let honest = fit(&members);
    assert!(honest.mean[1] > 0.19 && honest.own[1] < Quantity::Time.between()[1], "{honest:?}");
    for _ in 0..50 {
        members.push(Member { namespace: "liar".into(), ..member(99, -5.0) });
    }
    let off = (fit(&members).mean[1] - honest.mean[1]).abs();
    assert!(off < 0.2, "{off}");
}
