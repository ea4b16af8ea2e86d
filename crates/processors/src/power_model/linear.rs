//! Small dense symmetric systems.
//!
//! Sums are taken along rows, several lanes at a time: with 130 coefficients per zone, these loops
//! are what a window costs.

/// A symmetric matrix: the lower triangle of a square.
#[derive(Clone, Debug)]
pub(super) struct Symmetric {
    n: usize,
    cells: Vec<f64>,
}

impl Symmetric {
    pub(super) fn zero(n: usize) -> Self {
        Self { n, cells: vec![0.0; n * n] }
    }

    pub(super) fn len(&self) -> usize {
        self.n
    }

    pub(super) fn at(&self, i: usize, j: usize) -> f64 {
        self.cells[i.max(j) * self.n + i.min(j)]
    }

    /// Row `i` up to and with the diagonal.
    fn lower(&self, i: usize) -> &[f64] {
        &self.cells[i * self.n..i * self.n + i + 1]
    }

    pub(super) fn add(&mut self, i: usize, j: usize, value: f64) {
        self.cells[i.max(j) * self.n + i.min(j)] += value;
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.cells.iter_mut().for_each(|c| *c *= by);
    }

    /// Adds `by · x xᵀ`, x given by its non-zero entries, each index once.
    pub(super) fn add_outer(&mut self, x: &[(usize, f64)], by: f64) {
        let n = self.n;
        if 2 * x.len() < n {
            for &(i, a) in x {
                let row = &mut self.cells[i * n..i * n + i + 1];
                for &(j, b) in x.iter().filter(|(j, _)| *j <= i) {
                    row[j] += by * a * b;
                }
            }
            return;
        }
        let mut full = vec![0.0; n];
        x.iter().for_each(|&(i, a)| full[i] = a);
        for &(i, a) in x {
            axpy(&mut self.cells[i * n..i * n + i + 1], by * a, &full[..=i]);
        }
    }

    /// Empties row and column `i`.
    pub(super) fn forget(&mut self, i: usize) {
        for j in 0..self.n {
            self.cells[i.max(j) * self.n + i.min(j)] = 0.0;
        }
    }

    /// Grows to `n`, new rows empty.
    pub(super) fn grow(&mut self, n: usize) {
        if n <= self.n {
            return;
        }
        let mut grown = Self::zero(n);
        for i in 0..self.n {
            grown.cells[i * n..i * n + i + 1].copy_from_slice(self.lower(i));
        }
        *self = grown;
    }

    /// The lower Cholesky factor; `None` where it is not positive definite.
    fn cholesky(&self) -> Option<Vec<f64>> {
        let n = self.n;
        let mut l = vec![0.0; n * n];
        for i in 0..n {
            let (done, row) = l.split_at_mut(i * n);
            for j in 0..=i {
                let upper = done.get(j * n..j * n + j).unwrap_or(&row[..j]);
                let rest = self.at(i, j) - dot(&row[..j], upper);
                if i > j {
                    row[j] = rest / done[j * n + j];
                } else if rest.is_nan() || rest <= 0.0 {
                    return None;
                } else {
                    row[i] = rest.sqrt();
                }
            }
        }
        Some(l)
    }

    /// The inverse; `None` where it is not positive definite.
    pub(super) fn inverse(&self) -> Option<Self> {
        let n = self.n;
        let l = self.cholesky()?;
        // Rows of L⁻¹, then L⁻ᵀ L⁻¹.
        let mut m = vec![0.0; n * n];
        for i in 0..n {
            let (done, row) = m.split_at_mut(i * n);
            row[i] = 1.0;
            for (k, above) in done.chunks_exact(n).enumerate() {
                axpy(&mut row[..=k], -l[i * n + k], &above[..=k]);
            }
            row[..=i].iter_mut().for_each(|c| *c /= l[i * n + i]);
        }
        let mut inverse = Self::zero(n);
        for (k, row) in m.chunks_exact(n.max(1)).enumerate() {
            for i in 0..=k {
                axpy(&mut inverse.cells[i * n..i * n + i + 1], row[i], &row[..=i]);
            }
        }
        Some(inverse)
    }

    /// `self · x`.
    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        let mut product = vec![0.0; self.n];
        for i in 0..self.n {
            let row = self.lower(i);
            product[i] += dot(row, &x[..=i]);
            axpy(&mut product[..i], x[i], &row[..i]);
        }
        product
    }

    /// Row `i` · x.
    pub(super) fn row_times(&self, i: usize, x: &[f64]) -> f64 {
        let below = (i + 1..self.n).map(|j| self.cells[j * self.n + i] * x[j]);
        dot(self.lower(i), &x[..=i]) + below.sum::<f64>()
    }
}

/// y += a · x.
fn axpy(y: &mut [f64], a: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += a * x);
}

/// Σ a·b, in four sums at a time: one sum alone waits for each addition before the next.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (a4, b4) = (a.chunks_exact(4), b.chunks_exact(4));
    let rest = a4.remainder().iter().zip(b4.remainder()).map(|(a, b)| a * b).sum::<f64>();
    for (a, b) in a4.zip(b4) {
        for k in 0..4 {
            sums[k] += a[k] * b[k];
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverse_times_itself_is_one() {
        let mut m = Symmetric::zero(3);
        m.add_outer(&[(0, 1.0), (1, 2.0)], 1.0);
        m.add_outer(&[(1, 1.0), (2, 3.0)], 2.0);
        m.add_outer(&[(0, 2.0), (2, 1.0)], 1.0);
        let inverse = m.inverse().unwrap();
        for i in 0..3 {
            let unit: Vec<f64> = (0..3).map(|j| f64::from(u8::from(i == j))).collect();
            let got = m.times(&inverse.times(&unit));
            assert!(got.iter().zip(&unit).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?}");
        }
        assert!(Symmetric::zero(2).inverse().is_none());
    }

    #[test]
    fn a_row_and_a_sparse_or_full_sum_agree() {
        let x: Vec<(usize, f64)> = (0..9).map(|i| (i, 1.0 + i as f64)).collect();
        let (mut full, mut sparse) = (Symmetric::zero(9), Symmetric::zero(9));
        full.add_outer(&x, 0.5);
        // Two entries at a time: each diagonal entry comes eight times, each other one once.
        for (at, a) in x.iter().enumerate() {
            x[at + 1..].iter().for_each(|b| sparse.add_outer(&[*b, *a], 0.5));
        }
        for (i, a) in &x {
            for (j, b) in &x {
                let times = if i == j { 8.0 } else { 1.0 };
                assert_eq!(full.at(*i, *j), 0.5 * a * b);
                assert_eq!(sparse.at(*i, *j), times * 0.5 * a * b);
            }
        }
        let y: Vec<f64> = (0..9).map(|i| f64::from(i % 4)).collect();
        let all = full.times(&y);
        (0..9).for_each(|i| assert!((full.row_times(i, &y) - all[i]).abs() < 1e-9));
    }

    #[test]
    fn growing_and_forgetting() {
        let mut m = Symmetric::zero(1);
        m.add(0, 0, 5.0);
        m.grow(3);
        m.add_outer(&[(1, 1.0), (2, 1.0)], 1.0);
        m.forget(1);
        assert_eq!((m.len(), m.at(0, 0), m.at(1, 2), m.at(2, 2)), (3, 5.0, 0.0, 1.0));
    }
}
