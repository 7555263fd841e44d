"""Forecast of an offered rate by Holt and Winters: level, damped trend and, once two seasons were seen, season."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from millrace.errors import MillraceError

FEWEST = 10  # values, of which a trend is computed
INSTALL = "the model 'predictive' needs statsmodels for its forecast: pip install 'millrace[forecast]'"


def check_installed() -> None:
    """Raise an error that says what to install if the library is missing. Imports it, which takes a second."""
    try:
        import statsmodels.tsa.holtwinters  # noqa: F401
    except ImportError as error:
        raise MillraceError(f"{INSTALL} ({error})") from error


def forecast(values: Sequence[float], steps: int, season: int = 0) -> tuple[float, ...]:
    """The next `steps` values, none below 0. `season`: values after which the pattern repeats; 0: none. Of too few values, or
    of values that are all the same or cannot be fitted, the last one is the forecast."""
    if len(values) < FEWEST or max(values) == min(values):
        return (float(values[-1]),) * steps if values else (0.0,) * steps
    check_installed()
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    seasonal = season >= 2 and len(values) >= 2 * season
    scale = max(values)  # rates of any size are fitted equally well
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an optimum that is not quite reached forecasts well enough
        model = ExponentialSmoothing([value / scale for value in values], trend="add", damped_trend=True,
                                     seasonal="add" if seasonal else None, seasonal_periods=season if seasonal else None,
                                     initialization_method="estimated")
        predicted = model.fit(optimized=True).forecast(steps)
    forecasts = tuple(max(float(value) * scale, 0.0) for value in predicted)
    return forecasts if all(map(math.isfinite, forecasts)) else (float(values[-1]),) * steps  # nothing could be fitted
