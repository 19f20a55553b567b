"""Which way a metric is better: what torchmetrics and scikit-learn say of it; of other names nothing is assumed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from hfta_nb.errors import FamilyError

WAYS = {"max": True, "maximize": True, "min": False, "minimize": False}
"""Words for a direction, as Keras, Lightning and Optuna have them."""

_TORCH = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")

_HIGHER = """
accuracy accuracyscore adjustedmutualinfo adjustedmutualinfoscore adjustedrand adjustedrandscore arniqa auroc
averageprecision averageprecisionscore balancedaccuracy balancedaccuracyscore bert bertscore bleu bleuscore
calinskiharabasz calinskiharabaszscore chrf chrfscore chs ciou clip clipimagequalityassessment clipscore
clusteraccuracy cohenkappa cohenkappascore completeintersectionoverunion completeness completenessscore
complexscaleinvariantsignalnoiseratio concordancecorrcoef consensus consensusscore cosinesimilarity cramersv
criticalsuccess criticalsuccessindex csi d2absoluteerror d2absoluteerrorscore d2brier d2brierscore d2logloss
d2loglossscore d2pinball d2pinballscore d2tweedie d2tweediescore dcg dcgscore deepnoisesuppressionmeanopinion
deepnoisesuppressionmeanopinionscore dice dicescore diou distanceintersectionoverunion dnsmos dunn dunnindex
exactmatch explainedvariance explainedvariancescore f1 f1macro f1micro f1samples f1score f1weighted fbeta fbetascore
fleisskappa fmi fowlkesmallows fowlkesmallowsindex fowlkesmallowsscore gds generalizeddice generalizeddicescore
generalizedintersectionoverunion giou hitrate homogeneity homogeneityscore inception inceptionscore
intersectionoverunion iou jaccard jaccardindex jaccardmacro jaccardmicro jaccardsamples jaccardscore jaccardweighted
labelrankingaverageprecision labelrankingaverageprecisionscore logauc map matthewscorrcoef meanaverageprecision
meaniou modifiedpanopticquality mrr msssim multiscalestructuralsimilarityindexmeasure mutualinfo mutualinfoscore
ndcg ndcgscore negbrierscore neglogloss negmaxerror negmeanabsoluteerror negmeanabsolutepercentageerror
negmeangammadeviance negmeanpoissondeviance negmeansquarederror negmeansquaredlogerror negmedianabsoluteerror
negnegativelikelihoodratio negrootmeansquarederror negrootmeansquaredlogerror nisqa
nonintrusivespeechqualityassessment normalizeddcg normalizedmutualinfo normalizedmutualinfoscore panopticquality
peaksignalnoiseratio peaksignalnoiseratiowithblockedeffect pearsonscontingency pearsonscontingencycoefficient
perceptualevaluationspeechquality pesq positivelikelihoodratio precision precisionmacro precisionmicro
precisionrecallcurve precisionsamples precisionscore precisionweighted psnr qualitywithnoreference r2 r2score rand
randscore rankingaverageprecision recall recallatfixedprecision recallmacro recallmicro recallsamples recallscore
recallweighted rocauc rocaucovo rocaucovoweighted rocaucovr rocaucovrweighted rocaucscore rouge rougescore
rprecision sacrebleu sacrebleuscore sasdr scaleinvariantsignaldistortionratio scaleinvariantsignalnoiseratio scc sdr
shorttimeobjectiveintelligibility signaldistortionratio signalnoiseratio silhouette silhouettescore snr
sourceaggregatedsignaldistortionratio spatialcorrelation spatialcorrelationcoefficient spearmancorrcoef
speechreverberationmodulationenergyratio squad ssim stoi structuralsimilarityindexmeasure theilsu tokenaccuracy top5
topkaccuracy topkaccuracyscore tschuprowst uiqi universalimagequality universalimagequalityindex
videomultimethodassessmentfusion vif visualinformationfidelity vmeasure vmeasurescore
"""
HIGHER = frozenset(_HIGHER.split())
"""Names of scores, as `normal` has them: the classes of torchmetrics whose `higher_is_better` is True, the scorers of
scikit-learn and their functions, also by initials that are in use. The packages themselves take long to import."""

_LOWER = """
brierscoreloss calibrationerror cer charerrorrate continuousrankedprobability continuousrankedprobabilityscore
coverageerror crps deepimagestructureandtexturesimilarity editdistance eed errorrelativeglobaldimensionlesssynthesis
extendededitdistance fairness fallout fid frechetinceptiondistance groupstatrates hammingdistance hammingloss
hausdorffdistance hingeloss jensenshannondivergence kernelinceptiondistance kid kldivergence labelrankingloss lce
learnedperceptualimagepatchsimilarity lipvertexerror logcosherror logloss lpips lve mae mape matcherrorrate maxerror
meanabsoluteerror meanabsolutepercentageerror meangammadeviance meanpinballloss meanpoissondeviance meansquarederror
meansquaredlogerror meantweediedeviance medianabsoluteerror memorizationinformedfrechetinceptiondistance mer mifid
minkowskidistance mse msle negativelikelihoodratio normalizedrootmeansquarederror nrmse perplexity
procrustesdisparity rankingloss rase relativeaveragespectralerror relativesquarederror rmse rmsle
rootmeansquarederror rootmeansquarederrorusingslidingwindow rootmeansquaredlogerror rse sam sdi smape
spatialdistortion spatialdistortionindex spectralanglemapper symmetricmeanabsolutepercentageerror ter totalvariation
translationeditrate weightedmeanabsolutepercentageerror wer wil wmape worderrorrate wordinfolost zerooneloss
"""
LOWER = frozenset(_LOWER.split())
"""Names of errors, likewise."""

_OF_PART = re.compile("^(train|training|val|valid|validation|eval|test)[_/]")
"""Says on what data a metric was computed."""


def direction_of(given: Any) -> bool | None:
    """Whether more is better, as a person says it.

    Raises:
        FamilyError: it is no direction.
    """
    if given is None or isinstance(given, bool):
        return given
    if not isinstance(given, str) or given not in WAYS:
        raise FamilyError("not a direction", where="maximize", got=given, accepted='True or "max", False or "min"')
    return WAYS[given]


def more_is_better(name: str, metric: Any) -> bool | None:
    """Whether more of a metric is better, by its name and by that of its function or class; None if neither is known,
    or they do not agree."""
    found = {way for way in (_of_name(name), _of_function(metric)) if way is not None}
    return found.pop() if len(found) == 1 else None


def normal(name: str) -> str:
    """A name in small letters and digits alone."""
    return re.sub("[^a-z0-9]", "", name.lower())


def _of_name(name: str) -> bool | None:
    if name in _TORCH or (name.endswith("_loss") and hasattr(F, name)):
        return False
    key = normal(_OF_PART.sub("", name.lower()))
    return True if key in HIGHER else False if key in LOWER else None


def _of_function(metric: Callable[..., Any]) -> bool | None:
    while isinstance(metric, functools.partial):
        metric = metric.func
    if isinstance(metric, nn.modules.loss._Loss):
        return False
    if isinstance(getattr(metric, "higher_is_better", None), bool):  # an object of torchmetrics
        return bool(metric.higher_is_better)  # type: ignore[attr-defined]
    own = getattr(metric, "__name__", type(metric).__name__)  # torchmetrics wraps some in functions with a _
    if not isinstance(own, str):
        return None
    known = _of_name(own)
    return _of_name(re.sub("^_?(binary|multiclass|multilabel|retrieval)_", "", own)) if known is None else known
