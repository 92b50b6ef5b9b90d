// Short names for what the API shows, as its document has it.
import type { Schemas } from './client';

export type Job = Schemas['JobView'];
export type Usual = Schemas['UsualView'];
export type Overview = Schemas['OverviewAnswer'];
export type Attention = Schemas['AttentionView'];
export type Forecast = Schemas['ForecastAnswer'];
export type Timeline = Schemas['TimelineAnswer'];
export type Lane = Schemas['LaneView'];
export type TimelineRun = Lane['runs'][number];
