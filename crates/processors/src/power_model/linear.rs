//! Small dense symmetric systems.

/// A symmetric matrix, full storage.
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
        self.cells[i * self.n + j]
    }

    pub(super) fn row(&self, i: usize) -> &[f64] {
        &self.cells[i * self.n..(i + 1) * self.n]
    }

    pub(super) fn add(&mut self, i: usize, j: usize, value: f64) {
        self.cells[i * self.n + j] += value;
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.cells.iter_mut().for_each(|c| *c *= by);
    }

    /// Adds `by · x xᵀ`, x given by its non-zero entries.
    pub(super) fn add_outer(&mut self, x: &[(usize, f64)], by: f64) {
        for &(i, a) in x {
            let row = &mut self.cells[i * self.n..(i + 1) * self.n];
            for &(j, b) in x {
                row[j] += by * a * b;
            }
        }
    }

    /// Empties row and column `i`.
    pub(super) fn forget(&mut self, i: usize) {
        for j in 0..self.n {
            self.cells[i * self.n + j] = 0.0;
            self.cells[j * self.n + i] = 0.0;
        }
    }

    /// Grows to `n`, new rows empty.
    pub(super) fn grow(&mut self, n: usize) {
        if n <= self.n {
            return;
        }
        let mut grown = Self::zero(n);
        for i in 0..self.n {
            grown.cells[i * n..i * n + self.n].copy_from_slice(self.row(i));
        }
        *self = grown;
    }

    /// The lower Cholesky factor; `None` where it is not positive definite.
    fn cholesky(&self) -> Option<Vec<f64>> {
        let n = self.n;
        let mut l = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..=i {
                let (a, b) = (&l[i * n..i * n + j], &l[j * n..j * n + j]);
                let dot: f64 = a.iter().zip(b).map(|(x, y)| x * y).sum();
                let rest = self.at(i, j) - dot;
                if i == j {
                    if rest.is_nan() || rest <= 0.0 {
                        return None;
                    }
                    l[i * n + i] = rest.sqrt();
                } else {
                    l[i * n + j] = rest / l[j * n + j];
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
        for j in 0..n {
            m[j * n + j] = 1.0 / l[j * n + j];
            for i in j + 1..n {
                let dot: f64 = (j..i).map(|k| l[i * n + k] * m[k * n + j]).sum();
                m[i * n + j] = -dot / l[i * n + i];
            }
        }
        let mut inverse = Self::zero(n);
        for k in 0..n {
            let row = &m[k * n..k * n + k + 1];
            for (i, a) in row.iter().enumerate() {
                for (j, b) in row.iter().enumerate() {
                    inverse.cells[i * n + j] += a * b;
                }
            }
        }
        Some(inverse)
    }

    /// `self · x`.
    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        (0..self.n).map(|i| self.row(i).iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    }
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
    fn growing_and_forgetting() {
        let mut m = Symmetric::zero(1);
        m.add(0, 0, 5.0);
        m.grow(3);
        m.add_outer(&[(1, 1.0), (2, 1.0)], 1.0);
        m.forget(1);
        assert_eq!((m.len(), m.at(0, 0), m.at(1, 2), m.at(2, 2)), (3, 5.0, 0.0, 1.0));
    }
}
