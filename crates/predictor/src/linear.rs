//! Cholesky factorisation of covariance matrices.
//!
//! Own code: matrices are small (at most a few hundred rows), and nothing iterates without bound.
//! The order of every sum is fixed, so results are bit-identical on every machine.

/// Lower factor of a symmetric positive definite matrix, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Cholesky {
    n: usize,
    lower: Vec<f64>,
}

impl Cholesky {
    /// Factor of `a`, n x n, row-major; only its lower half is read. `None` unless positive
    /// definite and finite.
    pub fn new(n: usize, mut a: Vec<f64>) -> Option<Self> {
        for j in 0..n {
            let (before, rest) = a.split_at_mut(j * n + n);
            let row_j = &mut before[j * n..];
            let square: f64 = row_j[..j].iter().map(|x| x * x).sum();
            let pivot = row_j[j] - square;
            if !(pivot.is_finite() && pivot > 0.0) {
                return None;
            }
            let root = libm::sqrt(pivot);
            row_j[j] = root;
            for row_i in rest.chunks_exact_mut(n) {
                let dot: f64 = row_i[..j].iter().zip(&row_j[..j]).map(|(x, y)| x * y).sum();
                row_i[j] = (row_i[j] - dot) / root;
            }
        }
        Some(Self { n, lower: a })
    }

    fn row(&self, i: usize) -> &[f64] {
        &self.lower[i * self.n..i * self.n + self.n]
    }

    /// L x = b, in place.
    pub fn forward(&self, b: &mut [f64]) {
        for i in 0..self.n {
            let row = self.row(i);
            let dot: f64 = row[..i].iter().zip(&b[..i]).map(|(l, x)| l * x).sum();
            b[i] = (b[i] - dot) / row[i];
        }
    }

    /// A x = b, in place.
    pub fn solve(&self, b: &mut [f64]) {
        self.forward(b);
        for i in (0..self.n).rev() {
            b[i] /= self.row(i)[i];
            let x = b[i];
            for (b, l) in b[..i].iter_mut().zip(self.row(i)) {
                *b -= l * x;
            }
        }
    }

    /// Diagonal of the inverse.
    pub fn inverse_diagonal(&self) -> Vec<f64> {
        let mut diagonal = vec![0.0; self.n];
        let mut column = vec![0.0; self.n];
        for j in 0..self.n {
            column.fill(0.0);
            column[j] = 1.0;
            // Column j of L's inverse is zero above j.
            for i in j..self.n {
                let row = self.row(i);
                let dot: f64 = row[j..i].iter().zip(&column[j..i]).map(|(l, x)| l * x).sum();
                column[i] = (column[i] - dot) / row[i];
            }
            diagonal[j] = column[j..].iter().map(|x| x * x).sum();
        }
        diagonal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_solves_what_it_was_made_of() {
        let a = vec![4.0, 2.0, 0.4, 2.0, 3.0, 0.5, 0.4, 0.5, 2.0];
        let factor = Cholesky::new(3, a.clone()).unwrap();
        let x = [1.0, -2.0, 3.0];
        let mut b: Vec<f64> = a.chunks(3).map(|row| row.iter().zip(&x).map(|(a, x)| a * x).sum()).collect();
        factor.solve(&mut b);
        assert!(b.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-12), "{b:?}");
        let mut unit = vec![0.0, 1.0, 0.0];
        factor.solve(&mut unit);
        assert!((factor.inverse_diagonal()[1] - unit[1]).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_covariance_has_no_factor() {
        assert!(Cholesky::new(2, vec![1.0, 2.0, 2.0, 1.0]).is_none());
        assert!(Cholesky::new(1, vec![f64::NAN]).is_none());
    }
}
