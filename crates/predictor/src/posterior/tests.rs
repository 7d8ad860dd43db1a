use super::*;

fn prior() -> Prior {
    let q = Quantity::Time;
    Prior { mean: q.means(), own: q.profile_variances(), within: q.gpu_type_variances() }
}

fn on(kind: u16, gpus: f64) -> Setting {
    Setting { kind, gpus, ..Setting::default() }
}

fn row(kind: u16, gpus: f64, log: f64) -> Row {
    Row { setting: on(kind, gpus), log, noise: 0.02, table: None }
}

#[test]
fn one_row_moves_every_other_setting_and_says_most_nearby() {
    let at = |rows: &[Row], s: Setting| Posterior::new(Quantity::Time, prior(), rows).mean_and_variance(&s);
    let rows = [row(0, 0.0, 5.0)];
    let (here, there, other) = (at(&rows, on(0, 0.0)), at(&rows, on(0, 3.0)), at(&rows, on(1, 0.0)));
    assert!((here.0 - 5.0).abs() < 0.01 && here.1 < 0.02, "{here:?}");
    assert!(there.0 < 4.0 && there.0 > 5.0 - 2.1 && there.1 > here.1, "{there:?}");
    assert!((other.0 - 5.0).abs() < 0.4 && other.1 > here.1, "{other:?}");
}

#[test]
fn one_row_that_is_nonsense_does_not_bend_the_curve() {
    let mut rows: Vec<Row> = (0..6).map(|i| row(0, f64::from(i) / 2.0, 5.0 - 0.3 * f64::from(i))).collect();
    let honest = Posterior::new(Quantity::Time, prior(), &rows).mean_and_variance(&on(0, 1.25)).0;
    rows.push(row(0, 1.25, 9.0));
    let off = Posterior::new(Quantity::Time, prior(), &rows).mean_and_variance(&on(0, 1.25)).0;
    assert!((off - honest).abs() < 0.25, "{honest} {off}");
}

#[test]
fn a_table_that_is_off_is_off_everywhere() {
    // given: a doubtful table with half of the true values, and one observation
    let mut rows: Vec<Row> =
        (0..4).map(|i| Row { table: Some(0.25), ..row(0, f64::from(i), 4.0 - 0.6 * f64::from(i)) }).collect();
    rows.push(row(0, 2.0, 2.8 + std::f64::consts::LN_2));
    let curve = Posterior::new(Quantity::Time, prior(), &rows);
    for i in [0, 1, 3] {
        let moved = curve.mean_and_variance(&on(0, f64::from(i))).0 - (4.0 - 0.6 * f64::from(i));
        assert!((0.55..0.75).contains(&moved), "{i}: {moved}");
    }
}
