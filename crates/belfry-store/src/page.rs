//! One page of a list, and where the next one starts.

/// `next` is the place of the last item: a page is found again by its place, never by counting rows, so each row that was
/// there all the time is seen exactly once, whatever is inserted or removed meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T, C> {
    pub items: Vec<T>,
    pub next: Option<C>,
}

impl<T, C> Page<T, C> {
    /// From up to `limit + 1` items: the one too many only tells that there is more.
    pub(crate) fn of(mut items: Vec<T>, limit: usize, place: impl Fn(&T) -> C) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(place) } else { None };
        Self { items, next }
    }
}
